"""Collects what idle nodes are used for, moment by moment, until a minute is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from malletrain.allocator.utilization.definition import MINUTE_S, UseStep
from malletrain.allocator.utilization.present import PresentUse

LATE_S = 60.0
"""How long after its end a minute is worked out: the stall of a rescale is known only when it is over."""
MAX_GAP_S = 20.0
"""Looks at the present are no further apart; after a longer time nobody knows what has been."""
MAX_OPEN = 30
"""Minutes that wait to be worked out at most; beyond, the oldest are given up."""
_MIN_COVERED_S = MINUTE_S - 1.0
_STARTS_KEPT_S = 1800.0


@dataclass(frozen=True)
class OpenMinute:
    """A minute that is over and not worked out yet.

    Attributes:
        start: In seconds since the epoch, a multiple of 60.
        steps: What happened in it, in the order of time.
        starts: When jobs began to train on nodes after they had none, up to its end, by job.
    """

    start: float
    steps: tuple[UseStep, ...]
    starts: Mapping[str, tuple[float, ...]]

    @property
    def trainers(self) -> tuple[str, ...]:
        """Jobs that trained in it."""
        return tuple(
            dict.fromkeys(
                job.id for step in self.steps for job, rate in zip(step.jobs, step.rates, strict=True) if rate
            )
        )


class UseMeter:
    """Takes what is so at each moment, and hands out minutes when they are over."""

    def __init__(self, max_gap_s: float = MAX_GAP_S) -> None:
        """
        Args:
            max_gap_s: Longest time between two moments for which the first one is taken to hold, in seconds.
        """
        self._max_gap_s = max_gap_s
        self._minutes: dict[float, list[UseStep]] = {}
        self._last: tuple[float, PresentUse | None] = (0.0, None)
        self._starts: dict[str, tuple[float, ...]] = {}

    def note_use(self, now: float, present: PresentUse | None) -> tuple[float, PresentUse] | None:
        """Count the use since the last call, and remember the present one; to be called every second or so.

        Args:
            now: Seconds since the epoch.
            present: What idle nodes are used for; None: not known.

        Returns:
            When the use before began, in seconds since the epoch, and that use; None: not known.
        """
        since, before = self._last
        known = before is not None and 0 <= now - since <= self._max_gap_s
        self._last = (now, present)
        if before is None or not known:
            return None
        self._add(since, now, before)
        if present is not None:
            self._note_starts(now, before, present)
        for start in sorted(self._minutes)[:-MAX_OPEN]:
            del self._minutes[start]
        return since, before

    def _add(self, start: float, end: float, present: PresentUse) -> None:
        while start < end:
            first = start - start % MINUTE_S
            until = min(end, first + MINUTE_S)
            steps = self._minutes.setdefault(first, [])
            last = steps[-1] if steps else None
            if (
                last is not None
                and last.jobs is present.jobs
                and (last.nodes, last.rates)
                == (
                    present.nodes,
                    present.rates,
                )
            ):
                steps[-1] = replace(last, seconds=last.seconds + until - start)
            else:
                steps.append(UseStep(start, until - start, present.nodes, present.jobs, present.rates))
            start = until

    def _note_starts(self, now: float, before: PresentUse, present: PresentUse) -> None:
        trained = {job.id for job, rate in zip(before.jobs, before.rates, strict=True) if rate > 0}
        known = {job.id for job in present.jobs}
        starts = {
            job_id: tuple(time for time in times if time > now - _STARTS_KEPT_S)
            for job_id, times in self._starts.items()
            if job_id in known or job_id in trained
        }
        for job, rate in zip(present.jobs, present.rates, strict=True):
            if rate > 0 and job.id not in trained:
                starts[job.id] = (*starts.get(job.id, ()), now)
        self._starts = {job_id: times for job_id, times in starts.items() if times}

    def due(self, now: float) -> list[OpenMinute]:
        """The minutes that are to be worked out, oldest first; those of which not all is known are given up."""
        over = [start for start in sorted(self._minutes) if start + MINUTE_S + LATE_S <= now]
        minutes = []
        for start in over:
            steps = self._minutes[start]
            if sum(step.seconds for step in steps) < _MIN_COVERED_S:
                del self._minutes[start]
                continue
            until = start + MINUTE_S
            starts = {name: tuple(time for time in times if time < until) for name, times in self._starts.items()}
            minutes.append(OpenMinute(start, tuple(steps), starts))
        return minutes

    def close(self, minute: OpenMinute) -> None:
        """A minute has been worked out."""
        self._minutes.pop(minute.start, None)
