"""How a worker's process ended, and what that means for the job. Pure.

A training is over when rank 0 ends with exit status 0 without having been asked to leave. A worker that ends after it
was asked to leave has left. Every other end is a failure, unless the supervisor itself has killed the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from malletrain.supervisor.membership import Slot


class WorkerRole(Enum):
    """What a worker was to its job when it ended."""

    RANK_ZERO = auto()
    """Rank 0 of those that train, or the one process of a program."""
    MEMBER = auto()
    """Another rank of those that train."""
    NEW_WORKER = auto()
    """It took no part in the training yet."""


class ExitMeaning(Enum):
    """What the end of a worker means."""

    DONE = auto()
    """The training is over."""
    EARLY = auto()
    """A worker other than rank 0 has ended well, by itself: rank 0 is expected to end next."""
    LEFT = auto()
    """It was asked to leave, or killed by the supervisor."""
    FAILED = auto()
    """It failed."""


@dataclass(frozen=True)
class WorkerExit:
    """A worker that has ended.

    Attributes:
        slot: Its place.
        pid: Its process id.
        code: Exit status, negative for a signal.
        started: Whether the job's own code ran.
        going: Whether it had been told to go.
        killed: Whether the supervisor killed it.
        hung: Whether the supervisor killed it because it hung.
    """

    slot: Slot
    pid: int
    code: int
    started: bool
    going: bool
    killed: bool
    hung: bool

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.hung:
            how = "hung, killed"
        else:
            how = f"killed by signal {-self.code}" if self.code < 0 else f"exit status {self.code}"
        return f"worker on {self.slot.host}: {how}"

    def meaning(self, role: WorkerRole, *, asked: bool) -> ExitMeaning:
        """What it means for the job.

        Args:
            role: What the worker was to the job.
            asked: Whether it had been asked to leave: by a stop, by a new generation, by the release of a node that it
                uses, or by a rescale that takes its node away.
        """
        if asked or (self.killed and not self.hung):
            return ExitMeaning.LEFT
        if self.code == 0 and role is WorkerRole.RANK_ZERO:
            return ExitMeaning.DONE
        if self.code == 0 and role is WorkerRole.MEMBER:
            return ExitMeaning.EARLY
        return ExitMeaning.FAILED
