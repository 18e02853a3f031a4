"""Nodes that are always idle, and nodes that are idle when a trace says so."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import groupby

from malletrain.runtime.clock import Clock
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.machine.observations import NodeFacts, Observation
from malletrain.scavenger.sources.base import NodeSource


class StaticSource(NodeSource):
    """A list of nodes, which are idle from the start of the service on."""

    def __init__(self, nodes: Sequence[str], clock: Clock, facts: Mapping[str, NodeFacts] | None = None) -> None:
        self._nodes = tuple(nodes)
        self._facts = dict(facts or {})
        self._clock = clock

    def order(self) -> Sequence[str]:
        """The nodes as listed."""
        return self._nodes

    async def observations(self) -> AsyncIterator[Observation]:
        """One observation, which stays true. It does not say `ended`: the source goes on without changes."""
        now = self._clock.time()
        yield Observation(now, dict.fromkeys(self._nodes, now), facts=self._facts)


# Long sleeps are cut into pieces, so that changes of the wall clock are noticed.
_MAX_SLEEP_SECONDS = 1.0


class TraceSource(NodeSource):
    """Replays a trace in real time, or faster.

    All its times are wall-clock times: at speed 60, a fragment of 600 s lasts 10 s. After the end of the trace the last
    observation stays true: the nodes that are idle then remain idle.

    The second of the trace depends only on the wall clock and the origin. After a restart, a source with the same
    origin therefore goes on at the right place.
    """

    def __init__(
        self,
        trace: Trace,
        clock: Clock,
        origin: float,
        speed: float = 1.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            trace: What is replayed, from its second 0 to its duration.
            clock: Wall clock.
            origin: When second 0 of the trace is or was, in seconds since the epoch.
            speed: Trace seconds per second, above 0.
            sleep: Waits for so many seconds.
            on_close: Called at a graceful end.
        """
        self._trace = trace
        self._clock = clock
        self._origin = origin
        self._speed = speed
        self._sleep = sleep
        self._on_close = on_close
        self._changes = _changes(trace)

    def order(self) -> Sequence[str]:
        """The nodes of the trace."""
        return self._trace.nodes

    def past_lengths(self) -> Sequence[float]:
        """Fragments that ended since the replay began. There are some if it goes on after a restart."""
        now_s = min(self._trace_second(self._clock.time()), self._trace.duration_s)
        ended = [entry for entry in self._trace.fragments if 0 <= entry.idle_until_s <= now_s]
        ended.sort(key=lambda entry: entry.idle_until_s)
        return [entry.length_s / self._speed for entry in ended]

    async def observations(self) -> AsyncIterator[Observation]:
        """The present observation, then one per instant at which the trace changes."""
        duration_s = self._trace.duration_s
        first_s = min(max(0.0, self._trace_second(self._clock.time())), duration_s)
        idle = {
            entry.node: entry.idle_from_s
            for entry in self._trace.fragments
            if entry.idle_from_s <= first_s < entry.idle_until_s
        }
        await self._sleep_until(0.0)
        origin, since = self._origin, self._walls(idle)
        yield self._observation(first_s, since)
        if first_s >= duration_s:
            return
        coming = self._changes[bisect_right(self._changes, first_s, key=_second) :]
        for second, changes in groupby(coming, key=_second):
            await self._sleep_until(second)
            if origin != self._origin:
                origin, since = self._origin, self._walls(idle)
            for _, joins, entry in changes:
                if joins:
                    idle[entry.node] = entry.idle_from_s
                    since[entry.node] = self._wall(entry.idle_from_s)
                else:
                    del idle[entry.node], since[entry.node]
            yield self._observation(second, since)
            if second >= duration_s:
                return
        await self._sleep_until(duration_s)
        yield self._observation(duration_s, self._walls(idle))

    def _walls(self, seconds: Mapping[str, float]) -> dict[str, float]:
        return {node: self._wall(second) for node, second in seconds.items()}

    def _observation(self, second: float, since: Mapping[str, float]) -> Observation:
        return Observation(self._wall(second), dict(since), ended=second >= self._trace.duration_s)

    def move_times(self, seconds: float) -> None:
        """Go on at the same second of the trace."""
        self._origin += seconds

    async def close(self) -> None:
        """End the replay gracefully."""
        self._on_close()

    def _trace_second(self, time: float) -> float:
        return (time - self._origin) * self._speed

    def _wall(self, second: float) -> float:
        return self._origin + second / self._speed

    async def _sleep_until(self, second: float) -> None:
        while (left := self._seconds_until(second)) > 0:
            await self._sleep(min(left, _MAX_SLEEP_SECONDS))

    def _seconds_until(self, second: float) -> float:
        now = self._clock.time()  # which may move the origin
        return self._wall(second) - now


_Change = tuple[float, bool, Fragment]


def _changes(trace: Trace) -> list[_Change]:
    """When which node joins (True) or leaves, up to the end of the trace; leaves come first."""
    changes = [(entry.idle_from_s, True, entry) for entry in trace.fragments]
    changes += [(entry.idle_until_s, False, entry) for entry in trace.fragments]
    changes = [change for change in changes if change[0] <= trace.duration_s]
    changes.sort(key=lambda change: change[:2])
    return changes


def _second(change: _Change) -> float:
    return change[0]
