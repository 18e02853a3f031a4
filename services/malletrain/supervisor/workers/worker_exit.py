"""How a worker's process ended, and what that means for the job. Pure.

A training is over when rank 0 ends with exit status 0 without having been asked to leave. A worker that ends after it
was asked to leave has left. Every other end is a failure, unless the supervisor itself has killed the worker.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from enum import Enum, auto

from malletrain.common.error_texts import ErrorText
from malletrain.supervisor.workers.slot import Slot

_SIGNALS = {
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGSEGV: "segmentation fault",
}

_TRIES_TO_WARM = 3


def _signal_in_words(number: int) -> str:
    word = _SIGNALS.get(signal.Signals(number)) if number in set(signal.Signals) else None
    return f"killed by signal {number}" + (f" ({word})" if word else "")


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
    """It failed: the job is restarted, or the others go on without it."""


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
        lost: Whether it ended with the agent of its node, or could not be started there.
        out_of_memory: Whether the kernel killed processes on its node for want of memory at that time.
    """

    slot: Slot
    pid: int
    code: int
    started: bool
    going: bool
    killed: bool
    hung: bool
    lost: bool = False
    out_of_memory: bool = False

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.hung:
            how = "hung, killed"
        elif self.lost:
            how = "lost with its node, or not started there"
        else:
            how = _signal_in_words(-self.code) if self.code < 0 else f"exit status {self.code}"
            how += ", the node was out of memory" if self.out_of_memory else ""
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
    """What the end of a worker means for its job."""

    consequence: Consequence
    message: str


def is_over(ended: WorkerExit, role: WorkerRole, meaning: ExitMeaning, facts: ExitFacts) -> bool:
    """Whether the training is over by the end of this worker: by its exit status, or because the trainer says so."""
    by_exit_status = ended.code == 0 and role is not WorkerRole.NEW_WORKER and facts.completed
    return by_exit_status or meaning is ExitMeaning.DONE


def finish(ended: WorkerExit, members: int) -> Verdict:
    """The training is over.

    Args:
        ended: Rank 0, or the one process.
        members: How many trained.
    """
    who = "rank 0" if members > 1 else "its process"
    return Verdict(Consequence.FINISH, f"{who} on {ended.slot.host} ended with exit status 0")


def with_error(verdict: Verdict, error_text: ErrorText) -> Verdict:
    """A verdict with what the worker itself has said at its end."""
    return replace(verdict, message=f"{verdict.message}: {error_text.error}") if error_text.error else verdict


def not_warm(ended: WorkerExit, count: int) -> Verdict:
    """What it means that a worker has failed before it was warm, while nobody trains.

    Args:
        ended: The worker.
        count: How often its slot has failed lately, this time included.
    """
    if ended.code > 0 and not ended.lost:
        return Verdict(Consequence.FAIL, f"{ended.how} before it was warm")
    if count > _TRIES_TO_WARM:
        return Verdict(Consequence.FAIL, f"{ended.how} before it was warm, {count} times")
    return Verdict(Consequence.NOTE, ended.how)
