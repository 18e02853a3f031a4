"""Several sources as one, e.g. two schedulers on one machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from malletrain.scavenger.machine.observations import NodeFacts, Observation
from malletrain.scavenger.sources.base import NodeSource, SourceStatus


class MixedSource:
    """The union of the idle nodes of its sources. Each source tells the pools of its nodes."""

    def __init__(self, sources: Sequence[NodeSource]) -> None:
        self._sources = tuple(sources)
        self._newest: dict[int, Observation] = {}

    def order(self) -> Sequence[str]:
        """The names of the first source, then those of the next that are new, and so on."""
        return list(dict.fromkeys(name for source in self._sources for name in source.order()))

    def past_lengths(self) -> Sequence[float]:
        """The lengths of all sources, one source after the other."""
        return [length for source in self._sources for length in source.past_lengths()]

    def status(self) -> SourceStatus:
        """The status of all sources together."""
        statuses = [source.status() for source in self._sources]
        return SourceStatus(
            tuple(query for status in statuses for query in status.queries),
            tuple(entry for status in statuses for entry in status.placeholders),
        )

    async def observations(self) -> AsyncIterator[Observation]:
        """The union, whenever a source has news; it begins with the first observation of any source."""
        newest = self._newest
        newest.clear()
        news = asyncio.Event()

        async def follow(index: int, source: NodeSource) -> None:
            async for observation in source.observations():
                # What only one observation says must not be lost to the next one, nor be told twice.
                untold = newest[index].unfit if index in newest else {}
                newest[index] = replace(observation, unfit={**untold, **observation.unfit})
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
                    merged = merge([newest[index] for index in sorted(newest)], source_count=len(self._sources))
                    newest.update({index: replace(observation, unfit={}) for index, observation in newest.items()})
                    yield merged
                    if merged.ended:
                        return
                waiting.cancel()
        finally:
            for left in (*following, waiting):
                if left is not None:
                    left.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        """From all sources."""
        for source in self._sources:
            source.exclude(until, drained)

    def move_times(self, seconds: float) -> None:
        """Move the times of all sources, and of what they observed last."""
        for source in self._sources:
            source.move_times(seconds)
        for index, observation in self._newest.items():  # in place: `observations` reads the same dict
            self._newest[index] = observation.moved(seconds)

    async def close(self) -> None:
        """Close all sources."""
        await asyncio.gather(*(source.close() for source in self._sources))


def merge(observations: Sequence[Observation], source_count: int) -> Observation:
    """The union of observations. Pure.

    A node that two schedulers know is idle only if both say so. It is idle since the later of their times, and its
    idleness ends at the earlier of their ends.

    Args:
        observations: The newest of each source that has observed anything; at least one.
        source_count: Number of sources. The union has ended when all of them have.
    """
    knowing = Counter(name for observation in observations for name in observation.known | observation.idle.keys())
    calling = Counter(name for observation in observations for name in observation.idle)
    idle: dict[str, float] = {}
    facts: dict[str, NodeFacts] = {}
    for observation in observations:
        for name, since in observation.idle.items():
            if calling[name] == knowing[name]:
                idle[name] = max(idle.get(name, since), since)
        _add(facts, observation.facts)
    return Observation(
        time=max(observation.time for observation in observations),
        idle=idle,
        ended=len(observations) == source_count and all(observation.ended for observation in observations),
        ends=_earliest(observation.ends for observation in observations),
        facts=facts,
        agents={name: address for observation in observations for name, address in observation.agents.items()},
        agent_names={name: dns for observation in observations for name, dns in observation.agent_names.items()},
        watched=_merge_watched(observations),
        reserved=_earliest(observation.reserved for observation in observations),
        offline=frozenset().union(*(observation.offline for observation in observations)),
        known=frozenset().union(*(observation.known for observation in observations)),
        stale=any(observation.stale for observation in observations),
        unfit={name: reason for observation in observations for name, reason in observation.unfit.items()},
    )


def _earliest(times: Iterable[Mapping[str, float]]) -> dict[str, float]:
    earliest: dict[str, float] = {}
    for node_times in times:
        for name, at in node_times.items():
            earliest[name] = min(earliest.get(name, at), at)
    return earliest


def _merge_watched(observations: Sequence[Observation]) -> dict[str, float]:
    idle: dict[str, float] = {}
    for observation in observations:
        idle.update(observation.idle if observation.watched is None else observation.watched)
    return idle


def _add(facts: dict[str, NodeFacts], more: Mapping[str, NodeFacts]) -> None:
    for name, about in more.items():
        facts.setdefault(name, about)
