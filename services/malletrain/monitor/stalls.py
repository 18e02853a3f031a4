"""What a rescale costs: the gap between the records around it, less a usual step.

MalleTrain section 3.1: Monitor computes the cost of each rescale from the trainers' records.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from malletrain.monitor.progress import UsualStep
from malletrain.monitor.records import Step
from malletrain.monitor.settings import MonitorSettings

RESCALES_KEPT = 64
"""Newest rescales of a job that are remembered."""

_STEPS_AFTER = 5


@dataclass(frozen=True, slots=True)
class Rescale:
    """One measured rescale.

    Attributes:
        number: Counts the job's rescales, from 1.
        from_nodes: Scale before, in nodes.
        to_nodes: Scale after, in nodes.
        stall_seconds: The gap between the records around the change, less a usual step at the new scale.
        unix_seconds: When training went on.
    """

    number: int
    from_nodes: int
    to_nodes: int
    stall_seconds: float
    unix_seconds: float

    @property
    def growth(self) -> bool:
        """The scale went up."""
        return self.to_nodes > self.from_nodes


def is_rescale(step: Step, cold_gap_seconds: float) -> bool:
    """Whether a step holds the rescale of a running job, whose gap tells what rescaling costs.

    Not so:
    - a start from nothing, seen by a gap above `cold_gap_seconds` (the job waited on 0 nodes, or failed and was
      started again later), or by a new reporter at a scale that did not shrink: a growth keeps the process of rank 0,
      so where it went, all went;
    - a gap of unknown length: records are missing in it, or the clocks of two reporters disagree.

    A new reporter after a shrink is a rank 0 whose node was taken. A kill is seen the same way, with its time-out and
    rollback in the gap: it counts as the shrink that it is.
    """
    if step.to_nodes == step.from_nodes or not 0 <= step.seconds <= cold_gap_seconds:
        return False
    if step.new_reporter:
        return step.to_nodes < step.from_nodes
    return step.contiguous


class StallMeter:
    """The stalls of one job's rescales."""

    def __init__(self, settings: MonitorSettings, rescales: Iterable[Rescale] = ()) -> None:
        """Go on from the rescales of before."""
        self._settings = settings
        self._rescales = sorted(rescales, key=lambda rescale: rescale.number)[-RESCALES_KEPT:]
        self._gap_seconds = 0.0
        self._after: list[float] | None = None

    def add(self, step: Step, usual: UsualStep) -> None:
        """Take the next step of the job into account.

        Args:
            step: The step.
            usual: The job's usual step before it: stands in until steps at the new scale are known.
        """
        if is_rescale(step, self._settings.cold_gap_seconds):
            self._begin(step, usual.seconds)
        elif step.steady:
            self._refine(step.seconds)
        else:
            self._after = None

    def rescales(self) -> tuple[Rescale, ...]:
        """The newest rescales, oldest first."""
        return tuple(self._rescales)

    def scale_up_seconds(self) -> float | None:
        """Median stall of the newest growths; None before the first."""
        return self._median(growth=True)

    def scale_down_seconds(self) -> float | None:
        """Median stall of the newest shrinks; None before the first."""
        return self._median(growth=False)

    def _begin(self, step: Step, usual_step_seconds: float) -> None:
        number = self._rescales[-1].number + 1 if self._rescales else 1
        stall = max(0.0, step.seconds - usual_step_seconds)
        self._rescales.append(Rescale(number, step.from_nodes, step.to_nodes, stall, step.unix_seconds))
        del self._rescales[:-RESCALES_KEPT]
        self._gap_seconds = step.seconds
        self._after = []

    def _refine(self, seconds: float) -> None:
        if self._after is None:
            return
        self._after.append(seconds)
        stall = max(0.0, self._gap_seconds - statistics.median(self._after))
        self._rescales[-1] = replace(self._rescales[-1], stall_seconds=stall)
        if len(self._after) == _STEPS_AFTER:
            self._after = None

    def _median(self, *, growth: bool) -> float | None:
        stalls = [rescale.stall_seconds for rescale in self._rescales if rescale.growth == growth]
        return statistics.median(stalls[-self._settings.stall_median_count :]) if stalls else None
