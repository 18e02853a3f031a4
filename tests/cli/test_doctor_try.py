"""`malletrain doctor --try`: what is said of a placeholder that is refused, waits, runs, or ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from typer.testing import CliRunner

from malletrain.cli.main import application
from malletrain.cli.operate.doctor_checks import CommandResult, Finding
from malletrain.cli.operate.doctor_try import (
    TrialState,
    examine_try,
    parse_pbs_trial,
    parse_slurm_trial,
)
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.settings import HoldSettings

HOLD = HoldSettings(queue="scavenge")
ON_NODE = TrialState("n1", reason="RUNNING")


@dataclass
class StandInTrial:
    """A scheduler that answers what it is told to; the last answer stays."""

    answers: Sequence[TrialState | None]
    said: CommandResult = field(default_factory=lambda: CommandResult(True, "17.head\n"))
    deleted: list[str] = field(default_factory=list)
    looks: int = 0

    def submit(self) -> CommandResult:
        return self.said

    def look(self, identifier: str) -> TrialState | None:
        del identifier
        self.looks += 1
        return self.answers[min(self.looks, len(self.answers)) - 1]

    def delete(self, identifier: str) -> CommandResult:
        self.deleted.append(identifier)
        return CommandResult(True, "")


def tried(client: StandInTrial) -> Finding:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return examine_try(client, HOLD, lambda: now[0], sleep)


@pytest.mark.parametrize(
    ("answers", "ok", "words"),
    [
        ([TrialState(), ON_NODE, TrialState("n1", True, 0)], True, "on n1 0.5 s after its submission"),
        ([ON_NODE, TrialState("n1", True, 126)], False, "ended with status 126"),
        ([ON_NODE, None], True, "how it ended is not told"),
        ([TrialState(reason="PENDING (QOSMaxJobs)")], False, "not started after 15 s: PENDING (QOSMaxJobs)"),
        ([None], False, "does not list it"),
        ([ON_NODE], False, "where python has not ended"),
        ([TrialState(ended=True, reason="held")], False, "not started after 0 s: held"),
    ],
)
def test_what_becomes_of_it_is_said_and_it_is_deleted(answers: Any, ok: bool, words: str) -> None:
    client = StandInTrial(answers)
    found = tried(client)
    assert found.ok == ok
    assert words in found.found
    assert client.deleted == ["17.head"]


def test_words_of_a_refusal_are_told_and_nothing_is_deleted() -> None:
    client = StandInTrial([], CommandResult(False, "", "qsub: Access to queue is denied"))
    found = tried(client)
    assert (found.ok, found.found) == (False, "refused: qsub: Access to queue is denied")
    assert not tried(StandInTrial([], CommandResult(True, "no id\x1b"))).ok
    assert client.deleted == []


def test_it_is_deleted_when_the_try_is_interrupted() -> None:
    class Interrupted(StandInTrial):
        def look(self, identifier: str) -> TrialState | None:
            raise KeyboardInterrupt

    client = Interrupted([])
    with pytest.raises(KeyboardInterrupt):
        tried(client)
    assert client.deleted == ["17.head"]


def test_answers_of_pbs() -> None:
    ended = (
        "Job Id: 4.pbshead\n    Job_Name = malletrain-try\n    job_state = F\n    exec_host = pn001/0*4\n"
        "    comment = Job run at Fri Nov 27 at 14:23 on (pn001:ncpus=4) and failed\n    Exit_status = 3\n\n"
    )
    found = parse_pbs_trial(ended, "4.pbshead")
    assert found is not None
    assert (found.node, found.ended, found.status) == ("pn001", True, 3)
    waits = "Job Id: 5.pbshead\n    job_state = Q\n    comment = Not Running: Queue not started.\n\n"
    assert parse_pbs_trial(waits, "5.pbshead") == TrialState(reason="Not Running: Queue not started.")
    assert parse_pbs_trial(waits, "4.pbshead") is None
    assert parse_pbs_trial("what is this?", "4.pbshead") is None


def test_answers_of_slurm() -> None:
    runs = "JobId=7 JobName=malletrain-try JobState=RUNNING Reason=None Dependency=(null) ExitCode=0:0 NodeList=n001 "
    assert parse_slurm_trial(runs) == TrialState("n001", reason="RUNNING")
    ended = runs.replace("RUNNING", "FAILED").replace("None", "NonZeroExitCode").replace("0:0", "2:0")
    assert parse_slurm_trial(ended) == TrialState("n001", True, 2, "FAILED (NonZeroExitCode)")
    waits = "JobId=7 JobState=PENDING Reason=Resources ExitCode=0:0 NodeList=(null) "
    assert parse_slurm_trial(waits) == TrialState(reason="PENDING (Resources)")
    assert parse_slurm_trial("slurm_load_jobs error") is None


def test_only_a_scheduler_can_be_tried() -> None:
    done = CliRunner().invoke(application(), ["doctor", "--try"])
    assert isinstance(done.exception, InvalidInputError)
