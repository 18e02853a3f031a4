"""Which of the workers that ended together is the one whose failure ended the others, and whose fault that is. Pure.

When one worker fails, the others lose their connection to it: they raise errors of their own libraries, are aborted, or
are killed. In which order their ends are seen says little, since a process that fails takes its time to end.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from malletrain.common.error_texts import ErrorText
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import WorkerExit

_TOGETHER_SECONDS = 2.0
"""Ends so soon after the first failure belong to it, whatever the order in which they are seen."""
_OWN_SIGNALS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    }
)
"""Signals by which a process ends for what it does itself."""


class Guilt(IntEnum):
    """What the end of a worker says of its cause, the most telling first."""

    TAKEN = 0
    """Its node was lost or given up, or somebody has killed it: that ends the others."""
    OWN = 1
    """An error of its own."""
    UNKNOWN = 2
    """It does not say why."""
    CONSEQUENCE = 3
    """It says that another one has gone, or was ended after another one had."""


@dataclass(frozen=True)
class MemberEnd:
    """The end of one of the workers that trained together.

    Attributes:
        ended: The worker.
        at: When its end was seen, in monotonic seconds.
        error_text: What its last lines say.
        rescued: Whether it was asked to save, or killed, after another one had ended.
        newcomer: Whether it was only about to take part.
    """

    ended: WorkerExit
    at: float
    error_text: ErrorText
    rescued: bool = False
    newcomer: bool = False

    @property
    def guilt(self) -> Guilt:
        """What its end says of the cause."""
        ended, error_text = self.ended, self.error_text
        if ended.lost or (ended.killed and not self.rescued):
            return Guilt.TAKEN
        own_signal = -ended.code in _OWN_SIGNALS
        if ended.killed:
            return Guilt.OWN if error_text.is_own else Guilt.CONSEQUENCE
        if error_text.is_consequence or ended.code == 0 or (self.rescued and ended.code < 0 and not own_signal):
            return Guilt.CONSEQUENCE
        if ended.code < 0 and not (own_signal or ended.out_of_memory):
            return Guilt.TAKEN
        return Guilt.OWN if error_text.is_own or ended.code < 0 else Guilt.UNKNOWN


@dataclass(frozen=True)
class Failure:
    """Why workers have failed: the root cause alone.

    Attributes:
        slot: Of the worker that failed first.
        message: How it ended and why, for people, in one line.
        by_script: Whether the script ended by itself, with an exit status or by a signal for what it did, and did not
            only say that another worker had gone.
        taken: Whether its node was lost or given up: nobody's fault.
        newcomer: Whether the worker was only about to take part.
        scale: On how many hosts it trained.
        seconds: For how long, in seconds.
        log: The last lines of its log, up to its error.
        count: How many failures count against the job since its supervisor began, this one included; those before a
            good run do not.
    """

    slot: Slot
    message: str
    by_script: bool
    taken: bool
    newcomer: bool
    scale: int
    seconds: float
    log: tuple[str, ...] = ()
    count: int = 1


def root_cause(ends: Sequence[MemberEnd]) -> MemberEnd:
    """The end that has led to the others.

    Args:
        ends: Those of one generation, in the order in which they were seen; at least one.
    """
    until = ends[0].at + _TOGETHER_SECONDS

    def guilt(end: MemberEnd) -> Guilt:
        late = end.guilt is Guilt.TAKEN and end.at > until and not end.ended.lost
        return Guilt.CONSEQUENCE if late else end.guilt

    return min(ends, key=guilt)  # the first one of the most telling


def failure_of(ends: Sequence[MemberEnd], scale: int, seconds: float) -> Failure:
    """Why the workers of a generation have failed.

    Args:
        ends: As for `root_cause`.
        scale: On how many hosts it trained.
        seconds: For how long, in seconds.
    """
    root = root_cause(ends)
    ended, error_text = root.ended, root.error_text
    taken = ended.lost or (ended.killed and not ended.hung and not root.rescued)
    has_spoken = not (taken or ended.hung) and (ended.code > 0 or error_text.is_own)
    return Failure(
        slot=ended.slot,
        message=f"{ended.how}: {error_text.error}" if has_spoken and error_text.error else ended.how,
        by_script=root.guilt in (Guilt.OWN, Guilt.UNKNOWN),
        taken=taken,
        newcomer=root.newcomer,
        scale=scale,
        seconds=seconds,
        log=error_text.lines,
    )
