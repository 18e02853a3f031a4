"""Several sources as one: two schedulers on one machine, say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from malletrain.scavenger.sources.base import NodeFacts, Observation, QueryStatus, Source


class MixedSource:
    """The union of what its sources call idle. Each tells which pool its nodes belong to."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)

    def order(self) -> Sequence[str]:
        """The names of each in turn."""
        return list(dict.fromkeys(name for source in self._sources for name in source.order()))

    def past_lengths(self) -> Sequence[float]:
        """Those of all."""
        return [length for source in self._sources for length in source.past_lengths()]

    def status(self) -> Sequence[QueryStatus]:
        """Those of all."""
        return [status for source in self._sources for status in source.status()]

    async def observations(self) -> AsyncIterator[Observation]:
        """The union, whenever one of them has news; from when one of them has told anything."""
        newest: dict[int, Observation] = {}
        news = asyncio.Event()

        async def follow(index: int, source: Source) -> None:
            async for observation in source.observations():
                newest[index] = observation
                news.set()

        following = [asyncio.create_task(follow(index, source)) for index, source in enumerate(self._sources)]
        waiting: asyncio.Task[bool] | None = None
        try:
            while True:
                waiting = asyncio.create_task(news.wait())
                open_ends: set[asyncio.Task[Any]] = {waiting, *(task for task in following if not task.done())}
                await asyncio.wait(open_ends, return_when=asyncio.FIRST_COMPLETED)
                for task in following:
                    if task.done():
                        task.result()
                if news.is_set():
                    news.clear()
                    merged = merge([newest[index] for index in sorted(newest)], everybody=len(self._sources))
                    yield merged
                    if merged.ended:
                        return
                waiting.cancel()
        finally:
            for left in (*following, waiting):
                if left is not None:
                    left.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def close(self) -> None:
        """Close all."""
        for source in self._sources:
            source.close()


def merge(observations: Sequence[Observation], everybody: int) -> Observation:
    """The union of pictures. Pure.

    A node that two schedulers know is idle only if both say so, since when the later of them says; it ends with the
    earlier end.

    Args:
        observations: The newest of each source that has told anything; at least one.
        everybody: How many sources there are: the union has ended when all of them have.
    """
    knowing = Counter(name for observation in observations for name in observation.known | observation.idle.keys())
    calling = Counter(name for observation in observations for name in observation.idle)
    idle: dict[str, float] = {}
    ends: dict[str, float] = {}
    facts: dict[str, NodeFacts] = {}
    for observation in observations:
        for name, since in observation.idle.items():
            if calling[name] == knowing[name]:
                idle[name] = max(idle.get(name, since), since)
        for name, end in observation.ends.items():
            ends[name] = min(ends.get(name, end), end)
        _add(facts, observation.facts)
    return Observation(
        time=max(observation.time for observation in observations),
        idle=idle,
        ended=len(observations) == everybody and all(observation.ended for observation in observations),
        ends=ends,
        facts=facts,
        agents={name: address for observation in observations for name, address in observation.agents.items()},
        watched=_watched(observations),
        known=frozenset().union(*(observation.known for observation in observations)),
        stale=any(observation.stale for observation in observations),
    )


def _watched(observations: Sequence[Observation]) -> dict[str, float]:
    found: dict[str, float] = {}
    for observation in observations:
        found.update(observation.idle if observation.watched is None else observation.watched)
    return found


def _add(facts: dict[str, NodeFacts], more: Mapping[str, NodeFacts]) -> None:
    for name, about in more.items():
        facts.setdefault(name, about)
