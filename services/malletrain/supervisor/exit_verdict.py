"""What the end of a worker means for the event loop: the facts it is judged by, and the verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from malletrain.supervisor.worker_exit import ExitMeaning, WorkerExit, WorkerRole


@dataclass(frozen=True)
class ExitFacts:
    """What the event loop knows when a worker has ended.

    Attributes:
        over: Whether the training is over already, or all workers are being stopped.
        asked: Whether this worker was asked to stop: with all others, or by a STOP that came through Monitor.
        leaving: Nodes whose agents have reported that they are wanted back.
        completed: Whether the trainer has said that its training is complete.
    """

    over: bool
    asked: bool
    leaving: frozenset[str]
    completed: bool


class Consequence(Enum):
    """What the event loop does after a worker has ended."""

    FINISH = auto()
    """The training is over: the other workers are ended."""
    FAIL = auto()
    """The job can't go on."""
    NOTE = auto()
    """The job goes on; others are shown what went wrong until it is mended."""


@dataclass(frozen=True)
class Verdict:
    """What the end of a worker means for its job.

    Attributes:
        consequence: What is done.
        message: Why, for people.
    """

    consequence: Consequence
    message: str


def is_over(ended: WorkerExit, role: WorkerRole, meaning: ExitMeaning, facts: ExitFacts) -> bool:
    """Whether the training is over by the end of this worker: by its exit status, or because the trainer says so."""
    said = ended.code == 0 and role is not WorkerRole.NEW_WORKER and facts.completed
    return said or meaning is ExitMeaning.DONE


def finish(ended: WorkerExit, members: int) -> Verdict:
    """The training is over.

    Args:
        ended: Rank 0, or the one process.
        members: How many trained.
    """
    who = "rank 0" if members > 1 else "its process"
    return Verdict(Consequence.FINISH, f"{who} on {ended.slot.host} ended with exit status 0")
