"""What a mirroring job of the site says and hears, without services."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from malletrain.cli.jobs.mirroring import (
    SiteJobEnded,
    SiteSignals,
    SlurmComment,
    comment_of,
    mirror_until_ended,
    run_command,
    site_job,
)
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


class RefusedError(grpc.RpcError):  # type: ignore[misc]  # gRPC is not checked
    """A call that failed for a reason."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return f"because of {self._code.name}"


def test_jobs_that_cannot_be_cancelled_leave_none_of_the_others_running(capsys: pytest.CaptureFixture[str]) -> None:
    codes = {"j000001": [grpc.StatusCode.PERMISSION_DENIED], "j000003": [grpc.StatusCode.INTERNAL]}
    codes["j000004"] = [grpc.StatusCode.UNAVAILABLE]
    asked, slept = list[str](), list[float]()

    def cancel(request: Any, timeout: float) -> None:
        assert timeout > 0
        asked.append(request.job_id)
        if left := codes.get(request.job_id):
            raise RefusedError(left.pop())

    stubs = cast(Any, SimpleNamespace(job_manager=SimpleNamespace(CancelJob=cancel)))
    jobs = [job_message(f"j00000{number}", "n1") for number in range(1, 6)]
    with SiteSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(RefusedError) as raised:
            mirror_until_ended(stubs, jobs, SlurmComment("", Commands().run), signals, slept.append)
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED, "the first"
    assert asked == ["j000001", "j000002", "j000003", "j000004", "j000004", "j000005"]
    assert len(slept) == 1
    said = capsys.readouterr().err
    assert "j000001 is not cancelled: because of PERMISSION_DENIED" in said
    assert "j000003 is not cancelled: because of INTERNAL" in said
