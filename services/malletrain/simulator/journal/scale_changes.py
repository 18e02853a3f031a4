"""From a job's journal to the changes of its scale, each with its stall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.monitor.machine.stalls import MeasuredRescale

_HOLDING = frozenset((JobState.STARTING, JobState.RUNNING, JobState.RESCALING))
_CHANGING = frozenset((JobState.STARTING, JobState.RESCALING))
_CLOCK_SLACK_S = 1.0
"""A trainer's node and the head node may differ by so much about the time."""


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change of a job's scale that was commanded.

    Attributes:
        unix_seconds: When the job's processes began to change, in seconds since the epoch.
        before: Scale before, in nodes.
        nodes: Scale from then on, in nodes; 0: it was stopped.
        stall_s: How long it stood still, in seconds; infinite: until the next change.
        boot_s: How long it had trained on before, since the command, in seconds; 0 where that is not known.
    """

    unix_seconds: float
    before: int
    nodes: int
    stall_s: float
    boot_s: float = 0.0

    @property
    def growth(self) -> bool:
        """Whether it is a start or a growth; else a shrink, or as many nodes as before."""
        return self.nodes > self.before


def recorded_changes(
    events: Sequence[JobEvent],
    rescales: Sequence[MeasuredRescale] = (),
    usual_s: tuple[float, float] = (0.0, 0.0),
    first_batches: Sequence[float] = (),
) -> list[RecordedChange]:
    """The changes of a job's scale in the order of time.

    Where Monitor has measured the gap in the training, that is the stall: workers may have trained on while others
    booted. A start lasts until its first batch began. Where neither is known, the stall lasts from the command until
    the workers have confirmed their scale, and is at least as long as usual.

    Args:
        events: The job's rows in JobManager's journal, oldest first.
        rescales: What Monitor has measured.
        usual_s: Stall of a growth and of a shrink in seconds, where Monitor has measured none; 0: not known.
        first_batches: When processes that had not reported before began their first batch, in seconds since the epoch.
    """
    changes: list[RecordedChange] = []
    scale, waiting = 0, False
    held: tuple[str, ...] = ()
    for event in events:
        nodes = event.nodes if event.to_state in _HOLDING else ()
        began = event.to_state in _CHANGING and (event.from_state is not event.to_state or set(nodes) != set(held))
        if began or len(nodes) != scale:
            changes.append(RecordedChange(event.unix_seconds, scale, len(nodes), inf if nodes else 0.0))
            scale, waiting = len(nodes), bool(nodes)
        elif waiting and event.reason_code is JobReason.CONFIRMED:
            changes[-1] = replace(changes[-1], stall_s=max(0.0, event.unix_seconds - changes[-1].unix_seconds))
            waiting = False
        held = nodes
    return _with_starts(_with_measured(changes, rescales, usual_s), first_batches)


def _with_measured(
    changes: list[RecordedChange], rescales: Sequence[MeasuredRescale], usual_s: tuple[float, float]
) -> list[RecordedChange]:
    up_s = fmean([rescale.seconds for rescale in rescales if rescale.growth] or [usual_s[0]])
    down_s = fmean([rescale.seconds for rescale in rescales if not rescale.growth] or [usual_s[1]])
    ends = [later.unix_seconds for later in changes[1:]] + [inf] * bool(changes)
    remaining = sorted(rescales, key=lambda rescale: rescale.unix_seconds)
    found = []
    for change, end in zip(changes, ends, strict=True):
        measured = next(
            (
                rescale
                for rescale in remaining
                if (rescale.from_nodes, rescale.to_nodes) == (change.before, change.nodes)
                and change.unix_seconds - _CLOCK_SLACK_S <= rescale.unix_seconds <= end + _CLOCK_SLACK_S
            ),
            None,
        )
        if measured is None:
            min_s = 0.0 if not change.nodes else up_s if change.growth else down_s
            found.append(replace(change, stall_s=max(change.stall_s, min_s)))
            continue
        remaining.remove(measured)
        began = min(max(change.unix_seconds, measured.unix_seconds - measured.seconds), end)
        boot_s = began - change.unix_seconds
        found.append(replace(change, unix_seconds=began, stall_s=measured.seconds, boot_s=boot_s))
    return found


def _with_starts(changes: list[RecordedChange], first_batches: Sequence[float]) -> list[RecordedChange]:
    """Changes with the stalls of starts as they were; of several first batches the first one ends a start."""
    ends = [later.unix_seconds for later in changes[1:]] + [inf] * bool(changes)
    found = []
    for change, end in zip(changes, ends, strict=True):
        first = change.unix_seconds - _CLOCK_SLACK_S
        times = [time for time in first_batches if first <= time <= end] if change.before == 0 and change.nodes else []
        stall_s = max(0.0, min(times) - change.unix_seconds) if times else change.stall_s
        found.append(replace(change, stall_s=stall_s))
    return found
