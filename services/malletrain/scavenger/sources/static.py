"""Nodes that are always idle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping, Sequence

from malletrain.runtime.clock import Clock
from malletrain.scavenger.machine.observations import NodeFacts, Observation
from malletrain.scavenger.sources.base import SourceStatus


class StaticSource:
    """A list of nodes, which are idle from the start of the service on."""

    def __init__(self, nodes: Sequence[str], clock: Clock, facts: Mapping[str, NodeFacts] | None = None) -> None:
        self._nodes = tuple(nodes)
        self._facts = dict(facts or {})
        self._clock = clock

    def order(self) -> Sequence[str]:
        """The nodes as listed."""
        return self._nodes

    def past_lengths(self) -> Sequence[float]:
        """Empty: static nodes do not leave."""
        return ()

    async def observations(self) -> AsyncIterator[Observation]:
        """One observation, which stays true. It does not say `ended`: the source goes on without changes."""
        now = self._clock.time()
        yield Observation(now, dict.fromkeys(self._nodes, now), facts=self._facts)

    def status(self) -> SourceStatus:
        """Empty: no scheduler is asked."""
        return SourceStatus()

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        """Does nothing: this source holds no nodes."""

    def move_times(self, seconds: float) -> None:
        """Does nothing: this source keeps no times."""

    async def close(self) -> None:
        """Does nothing: no process and no file is open."""
