"""Nodes that are always idle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from malletrain.runtime.clock import Clock
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
