"""A training in a composition that notes every batch, and ends when it is told to."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.composition import ROOT, Composition, Job
from tests.support.waiting import wait_until
from tests.training.accounts import Accounts, accounts_of, lines_in

WITH_TRAINER = ("--file", str(ROOT / "docker-compose.yml"), "--file", str(ROOT / "tests/containers/trainer.yml"))
"""Options of a composition in whose JobManager the trainer is."""
_JOBS = "/var/lib/malletrain/jobs"
_TRAINER = "/opt/tests/training/trainer.py"
_AHEAD = 600
"""Samples after which a training ends once it is told to; all its workers have been told by then."""


@dataclass(frozen=True)
class NotedTraining:
    """A training.

    Attributes:
        composition: Where it runs.
        id: Its identifier.
        notes: A folder for copies of what it has noted.
    """

    composition: Composition
    id: str
    notes: Path

    def wait_for(self, samples: int) -> Job:
        """Wait until it runs, and has trained on so many samples; what is listed of it then."""

        def reached(jobs: dict[str, Job]) -> bool:
            assert jobs[self.id].state in ("QUEUED", "WAITING", "STARTING", "RUNNING", "RESCALING"), jobs[self.id]
            return jobs[self.id].state == "RUNNING" and jobs[self.id].samples >= samples

        return self.composition.wait_for_jobs(reached, f"{samples} samples of {self.id}")[self.id]

    def lines(self) -> list[dict[str, Any]]:
        """All that its workers have noted so far, in order of time."""
        wait_until(self._copied, 60, f"the notes of {self.id}")
        return lines_in(self.notes / self.id)

    def _copied(self) -> bool:
        try:
            self.composition.run("cp", f"job_manager:{_JOBS}/{self.id}", str(self.notes))
        except AssertionError:  # a file may be replaced while it is copied
            return False
        return True

    def starts(self) -> list[int]:
        """Sample counters with which its first workers started, in order of time."""
        return [line["samples"] for line in self.lines() if line["event"] == "start" and line["rank"] == 0]

    def newest(self) -> int:
        """The sample counter of the newest batch."""
        return max((line["before"] for line in self.lines() if line["event"] == "batch"), default=0)

    def end(self) -> Accounts:
        """Let it come to its end, completed; what it has trained on, without a gap.

        Raises:
            AssertionError: it does not complete, or a sample was skipped, or trained on from another state.
        """
        write = f"cd {_JOBS}/{self.id} && echo {self.newest() + _AHEAD} >draft && mv draft wanted"
        self.composition.run("exec", "--no-TTY", "job_manager", "sh", "-c", write)

        def ended(jobs: dict[str, Job]) -> bool:
            assert jobs[self.id].state not in ("FAILED", "CANCELLED"), jobs[self.id]
            return jobs[self.id].state == "COMPLETED"

        listed = self.composition.wait_for_jobs(ended, f"the end of {self.id}")[self.id]
        self.lines()
        accounts = accounts_of(self.notes / self.id)
        accounts.check_epochs()
        accounts.check_state()
        assert accounts.samples == listed.samples
        return accounts


def train(composition: Composition, notes: Path, most: int) -> NotedTraining:
    """Submit such a training, on a number of nodes at most."""
    scale = ("--min", "1", "--max", str(most), "--profile", "never", "--curve", "1:100,2:190,3:270")
    options = ("--backend", "horovod", "--env", "OMP_NUM_THREADS=1", "--request-id", uuid.uuid4().hex)
    submitted = composition.submit_command(*scale, *options, "--", "python", _TRAINER)
    (notes / submitted).mkdir()
    return NotedTraining(composition, submitted, notes)
