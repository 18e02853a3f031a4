"""Nodes that are idle when a trace says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import groupby

from malletrain.runtime.clock import Clock
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.sources.base import Observation

# Sleeps are cut into pieces so that a step of the wall clock is noticed.
_LONGEST_SLEEP_SECONDS = 1.0


class TraceSource:
    """Replays a trace in real time, or faster.

    Everything it gives out is in wall-clock seconds: at speed 60 a fragment of 600 s is one of 10 s. After the last
    second of the trace the picture stays: the nodes that are idle then remain so, as nothing is known of what follows.

    Which second of the trace it is depends only on the wall clock and the origin. A source that is made anew with the
    same origin goes on where the trace is by then.
    """

    def __init__(
        self,
        trace: Trace,
        clock: Clock,
        origin: float,
        speed: float = 1.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare a replay.

        Args:
            trace: What is replayed, from its second 0 to its duration.
            clock: Wall clock.
            origin: When second 0 of the trace is or was, in seconds since the epoch.
            speed: Trace seconds per second, above 0.
            sleep: Waits for so many seconds.
        """
        self._trace = trace
        self._clock = clock
        self._origin = origin
        self._speed = speed
        self._sleep = sleep

    def order(self) -> Sequence[str]:
        """The nodes of the trace."""
        return self._trace.nodes

    def past_lengths(self) -> Sequence[float]:
        """Fragments that ended since the replay began: there are some when it goes on after a restart."""
        now_s = min(self._trace_second(self._clock.time()), self._trace.duration_s)
        ended = [entry for entry in self._trace.fragments if 0 <= entry.idle_until_s <= now_s]
        ended.sort(key=lambda entry: entry.idle_until_s)
        return [entry.length_s / self._speed for entry in ended]

    async def observations(self) -> AsyncIterator[Observation]:
        """The present picture, then one observation per instant at which the trace changes."""
        duration_s = self._trace.duration_s
        first_s = min(max(0.0, self._trace_second(self._clock.time())), duration_s)
        idle = {
            entry.node: self._wall(entry.idle_from_s)
            for entry in self._trace.fragments
            if entry.idle_from_s <= first_s < entry.idle_until_s
        }
        await self._sleep_until(self._wall(0.0))
        yield Observation(self._wall(first_s), dict(idle), ended=first_s >= duration_s)
        if first_s >= duration_s:
            return
        for second, changes in groupby(self._changes(first_s), key=lambda change: change[0]):
            await self._sleep_until(self._wall(second))
            for _, joins, entry in changes:
                if joins:
                    idle[entry.node] = self._wall(entry.idle_from_s)
                else:
                    del idle[entry.node]
            yield Observation(self._wall(second), dict(idle), ended=second >= duration_s)
            if second >= duration_s:
                return
        await self._sleep_until(self._wall(duration_s))
        yield Observation(self._wall(duration_s), dict(idle), ended=True)

    def _changes(self, after_s: float) -> Iterator[tuple[float, bool, Fragment]]:
        """Leaves and joins after that second and within the trace's duration, in order; leaves come first."""
        last_s = self._trace.duration_s
        changes = [(entry.idle_from_s, True, entry) for entry in self._trace.fragments]
        changes += [(entry.idle_until_s, False, entry) for entry in self._trace.fragments]
        within = [change for change in changes if after_s < change[0] <= last_s]
        within.sort(key=lambda change: change[:2])
        return iter(within)

    def _trace_second(self, time: float) -> float:
        return (time - self._origin) * self._speed

    def _wall(self, second: float) -> float:
        return self._origin + second / self._speed

    async def _sleep_until(self, time: float) -> None:
        while (left := time - self._clock.time()) > 0:
            await self._sleep(min(left, _LONGEST_SLEEP_SECONDS))
