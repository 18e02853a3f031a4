"""What a mirroring job of the site says and hears, without services."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from malletrain.cli.jobs.mirroring import SiteJobEnded, SiteSignals, SlurmComment, comment_of, run_command, site_job
from malletrain.v1 import resources_pb2
from tests.support.builders import job_message

QUEUED = resources_pb2.JOB_STATE_QUEUED


class Commands:
    """Takes commands, and answers with a reason."""

    def __init__(self, reason: str = "") -> None:
        self.reason, self.given = reason, list[Sequence[str]]()

    def run(self, argv: Sequence[str]) -> str:
        self.given.append(argv)
        return self.reason


def test_the_comment_says_how_our_jobs_stand() -> None:
    assert comment_of([job_message("j000001", "n1", "n2")]) == "j000001 RUNNING, 2 nodes"
    assert comment_of([job_message("j000001", state=QUEUED)]) == "j000001 QUEUED"
    several = [job_message("j000001", "n1"), job_message("j000002", state=QUEUED), job_message("j000003", "n2")]
    assert comment_of(several) == "j000001 to j000003: 2 RUNNING, 1 QUEUED"


def test_a_comment_is_written_once_for_each_change_and_no_more_after_a_failure() -> None:
    commands, jobs = Commands(), [job_message("j000001", "n1")]
    comment = SlurmComment("77", commands.run)
    comment.write(jobs)
    comment.write(jobs)
    assert commands.given == [["scontrol", "update", "JobId=77", "Comment=j000001 RUNNING, 1 nodes"]]
    commands.reason = "refused"
    comment.write([job_message("j000001", state=QUEUED)])
    comment.write(jobs)
    assert len(commands.given) == 2
    nobody = Commands()
    SlurmComment(site_job({}), nobody.run).write(jobs)
    assert nobody.given == []


def test_commands_that_fail_say_why() -> None:
    assert run_command(["true"]) == ""
    assert run_command(["sh", "-c", "echo no >&2; exit 3"]) == "sh ended with 3: no"
    assert "no-such-program" in run_command(["no-such-program"])


def test_a_signal_before_the_answer_ends_what_comes_of_it_and_others_are_ignored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SiteSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SiteJobEnded, match="SIGTERM"):
            signals.arm()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    with SiteSignals() as signals:
        signals.arm()
        with pytest.raises(SiteJobEnded, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
