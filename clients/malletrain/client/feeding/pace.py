"""What a feed measures: how fast its trainings would go if they never waited, and what its processes prepare.

Pure: no I/O and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

WAITS_FROM = 0.05
"""Trainings wait for samples where they do so for this share of their time."""
_WINDOW_SECONDS = 5.0
_MIN_CYCLES = 2
_MAX_CYCLES = 512
_CUT_SECONDS = 1.0
"""A training that does not wait is measured in pieces of this length."""
_MIN_SECONDS = 0.25
_MIN_PREPARED = 8
_REMEMBERED = 512.0
"""Samples on which a supply rests about: older ones count less and less."""
_MIN_SAMPLES = 16
"""A supply counts once it rests on so many samples."""
_OLD_SECONDS = 600.0
"""A supply that was measured so long ago counts no more: the machine may be used otherwise now."""


class _Cycle(NamedTuple):
    """From the end of a wait to the end of the next: seconds of own work, seconds of waiting, samples prepared."""

    busy: float
    waited: float
    prepared: int


@dataclass(slots=True)
class _Training:
    waiting: bool
    since: float
    prepared: int
    busy: float = 0.0
    begun: bool = False
    cycles: deque[_Cycle] = field(default_factory=lambda: deque(maxlen=_MAX_CYCLES))

    def look(self, now: float, prepared: int, *, waiting: bool) -> None:
        passed = max(0.0, now - self.since)
        if self.waiting and not waiting:
            if self.begun:
                self._close(passed, now, prepared)
            else:  # what it waited for first was the start of the feed, and no step has been seen yet
                self.begun, self.busy, self.prepared = True, 0.0, prepared
        elif waiting and not self.waiting:
            self.busy += passed
        elif not waiting and passed >= _CUT_SECONDS:
            self.begun = True
            self.busy += passed
            self._close(0.0, now, prepared)
        else:
            return
        self.waiting, self.since = waiting, now

    def _close(self, waited: float, now: float, prepared: int) -> None:
        self.cycles.append(_Cycle(self.busy, waited, prepared - self.prepared))
        self.busy, self.prepared, self.since = 0.0, prepared, now
        seconds = sum(each.busy + each.waited for each in self.cycles)
        while len(self.cycles) > _MIN_CYCLES and seconds > _WINDOW_SECONDS:
            gone = self.cycles.popleft()
            seconds -= gone.busy + gone.waited

    @property
    def totals(self) -> _Cycle | None:
        """All that is remembered; None: too little time."""
        if len(self.cycles) < _MIN_CYCLES:
            return None
        sums = _Cycle(
            sum(each.busy for each in self.cycles),
            sum(each.waited for each in self.cycles),
            sum(each.prepared for each in self.cycles),
        )
        return sums if sums.busy + sums.waited >= _MIN_SECONDS else None


class Demand(NamedTuple):
    """What trainings ask for.

    Attributes:
        rate: Samples/s that would be prepared if the training that waits least never waited.
        waited: Share of its time in which that training waits for samples.
    """

    rate: float
    waited: float


class PaceMeter:
    """How fast the trainings of a group would go.

    They advance together, so the one that waits least sets the pace: the others wait for it, too. What is prepared per
    second of its own work is the demand, whatever is prepared now. That counts only what this feed prepares: parts of
    other workers of a training, and samples of the feeds of other nodes, are in it as they are in fact.
    """

    def __init__(self) -> None:
        self._trainings: dict[int, _Training] = {}

    def look(self, now: float, prepared: int, trainings: Collection[int], waiting: Collection[int]) -> None:
        """Note who waits. The more often this is called, the more exact.

        Args:
            now: Monotonic time in seconds.
            prepared: Samples that have been prepared so far.
            trainings: All that are in the group.
            waiting: Those that wait for samples.
        """
        for gone in self._trainings.keys() - set(trainings):
            del self._trainings[gone]
        for training in trainings:
            known = self._trainings.get(training)
            if known is None:
                self._trainings[training] = _Training(training in waiting, now, prepared)
            else:
                known.look(now, prepared, waiting=training in waiting)

    @property
    def demand(self) -> Demand | None:
        """What is demanded; None: not known yet, or nothing."""
        cycles = [totals for each in self._trainings.values() if (totals := each.totals) is not None]
        if not cycles:
            return None
        busiest = max(cycles, key=lambda each: each.busy / (each.busy + each.waited))
        if busiest.prepared < _MIN_PREPARED:
            return None  # it stands still, and the others may wait for that
        seconds = busiest.busy + busiest.waited
        # A share of own work below this can't be told from the latency of messages.
        return Demand(busiest.prepared / max(busiest.busy, 0.01 * seconds), busiest.waited / seconds)


@dataclass(slots=True)
class _Rate:
    samples: float = 0.0
    seconds: float = 0.0
    counted: int = 0
    at: float = 0.0


class SupplyMeter:
    """Samples/s by number of processes: what they prepare in the time in which they have something to prepare."""

    def __init__(self, remembered: Mapping[int, float] | None = None) -> None:
        """Begin with what an earlier feed has measured, until it is measured here.

        Args:
            remembered: Samples/s by number of processes.
        """
        self._remembered = dict(remembered or {})
        self._rates: dict[int, _Rate] = {}
        self._looked: float | None = None
        self._busy = 0

    def look(self, now: float, processes: int, busy: int, done: int) -> None:
        """Note what processes do.

        Args:
            now: Monotonic time in seconds.
            processes: How many there are.
            busy: How many of them have something to prepare now.
            done: Samples that they have prepared since the last call.
        """
        passed = 0.0 if self._looked is None else max(0.0, now - self._looked)
        self._looked = now
        spent, self._busy = passed * min(self._busy, processes), busy
        if not spent and not done:
            return
        rate = self._rates.setdefault(processes, _Rate())
        kept = (1.0 - 1.0 / _REMEMBERED) ** done
        rate.samples, rate.seconds = rate.samples * kept + done, rate.seconds * kept + spent
        rate.counted += done
        rate.at = now

    def measured(self, now: float) -> dict[int, float]:
        """Samples/s by number of processes, as far as it is known.

        Args:
            now: Monotonic time in seconds.
        """
        rates = {
            number: number * rate.samples / rate.seconds
            for number, rate in self._rates.items()
            if rate.counted >= _MIN_SAMPLES and rate.seconds > 0 and now - rate.at <= _OLD_SECONDS
        }
        new = {number for number, rate in self._rates.items() if rate.counted >= _MIN_SAMPLES}
        before = {number: rate for number, rate in self._remembered.items() if number not in new}
        return dict(sorted((before | rates).items()))
