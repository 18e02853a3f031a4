"""What a rescale costs: the gap between the records around it, less a usual step. Pure.

MalleTrain section 3.1: Monitor computes the cost of each rescale from the trainers' records.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from malletrain.model.scaling import RescaleStall
from malletrain.monitor.progress import TrainingStep, UsualStep
from malletrain.monitor.settings import MonitorSettings

RESCALES_KEPT = 64
"""Newest rescales of a job that are remembered."""

_STEPS_AFTER = 5


@dataclass(frozen=True, slots=True)
class MeasuredRescale(RescaleStall):
    """One measured rescale. The stall is the gap between the records around it, less a usual step at the new scale.

    Attributes:
        unix_seconds: When training continued, in seconds since the epoch.
        number: Number of the rescale within the job, from 1.
    """

    unix_seconds: float
    number: int

    @property
    def growth(self) -> bool:
        """Whether the scale increased."""
        return self.to_nodes > self.from_nodes


def is_rescale(step: TrainingStep, cold_gap_seconds: float) -> bool:
    """Whether a step contains a rescale of a running job, so that its duration shows the cost of rescaling.

    It does not in these cases:
    - The job was started from a checkpoint: the gap is longer than `cold_gap_seconds` (the job waited without nodes,
      or failed and was restarted later), or there is a new reporter and the scale did not decrease. A growth keeps the
      process of rank 0, so a new reporter means that all processes were replaced.
    - The length of the gap is not known: records are missing in it, or the clocks of two reporters disagree.

    A new reporter after a decrease means that the node of rank 0 was taken. If that node was lost without notice, the
    time-out and the rollback lie in the gap as well, and count as part of the stall.
    """
    if step.to_nodes == step.from_nodes or not 0 <= step.seconds <= cold_gap_seconds:
        return False
    if step.new_reporter:
        return step.to_nodes < step.from_nodes
    return step.contiguous


class StallMeter:
    """The stalls of one job's rescales."""

    def __init__(self, settings: MonitorSettings, rescales: Iterable[MeasuredRescale] = ()) -> None:
        """Continue from rescales that were measured before."""
        self._settings = settings
        self._rescales = sorted(rescales, key=lambda rescale: rescale.number)[-RESCALES_KEPT:]
        self._gap_seconds = 0.0
        self._after: list[float] | None = None

    def add(self, step: TrainingStep, usual: UsualStep) -> None:
        """Take the next step of the job into account.

        Args:
            step: The step.
            usual: The job's usual step so far. It is subtracted from the gap until steps at the new scale are known.
        """
        if is_rescale(step, self._settings.cold_gap_seconds):
            self._begin(step, usual.seconds)
        elif step.steady:
            self._refine(step.seconds)
        else:
            self._after = None

    def extend(self, seconds: Sequence[float]) -> None:
        """Take the durations of the next steps into account, which are all steady."""
        for duration in seconds[:_STEPS_AFTER]:
            self._refine(duration)

    def rescales(self) -> tuple[MeasuredRescale, ...]:
        """The newest rescales, oldest first."""
        return tuple(self._rescales)

    @property
    def last_number(self) -> int:
        """Number of the newest rescale; 0 before the first."""
        return self._rescales[-1].number if self._rescales else 0

    def after(self, number: int) -> tuple[MeasuredRescale, ...]:
        """Rescales since the one with a number, as far as they are remembered, oldest first."""
        return tuple(rescale for rescale in self._rescales if rescale.number > number)

    def scale_up_seconds(self) -> float | None:
        """Median stall of the newest growths in seconds; None before the first."""
        return self._median(growth=True)

    def scale_down_seconds(self) -> float | None:
        """Median stall of the newest shrinks in seconds; None before the first."""
        return self._median(growth=False)

    def _begin(self, step: TrainingStep, usual_step_seconds: float) -> None:
        number = self.last_number + 1
        stall = max(0.0, step.seconds - usual_step_seconds)
        self._rescales.append(MeasuredRescale(step.from_nodes, step.to_nodes, stall, step.unix_seconds, number))
        del self._rescales[:-RESCALES_KEPT]
        self._gap_seconds = step.seconds
        self._after = []

    def _refine(self, seconds: float) -> None:
        """Subtract the median of the first steps at the new scale instead of the old usual step."""
        if self._after is None:
            return
        self._after.append(seconds)
        stall = max(0.0, self._gap_seconds - statistics.median(self._after))
        self._rescales[-1] = replace(self._rescales[-1], seconds=stall)
        if len(self._after) == _STEPS_AFTER:
            self._after = None

    def _median(self, *, growth: bool) -> float | None:
        stalls = [rescale.seconds for rescale in self._rescales if rescale.growth == growth]
        return statistics.median(stalls[-self._settings.stall_median_count :]) if stalls else None
