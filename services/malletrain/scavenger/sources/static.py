"""Nodes that are always idle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from malletrain.runtime.clock import Clock
from malletrain.scavenger.sources.base import Observation, QueryStatus


class StaticSource:
    """A list of nodes; each is idle from the start of the service on."""

    def __init__(self, nodes: Sequence[str], clock: Clock) -> None:
        self._nodes = tuple(nodes)
        self._clock = clock

    def order(self) -> Sequence[str]:
        """The nodes as listed."""
        return self._nodes

    def past_lengths(self) -> Sequence[float]:
        """None: a static node does not leave."""
        return ()

    async def observations(self) -> AsyncIterator[Observation]:
        """One picture that stays; the source has not ended, there is just nothing that changes."""
        now = self._clock.time()
        yield Observation(now, dict.fromkeys(self._nodes, now))

    def status(self) -> Sequence[QueryStatus]:
        """None: nobody is asked."""
        return ()

    def close(self) -> None:
        """Nothing is kept."""
