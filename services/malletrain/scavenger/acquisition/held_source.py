"""A source whose nodes count only once a placeholder of ours holds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from malletrain.runtime.clock import Clock
from malletrain.scavenger.acquisition.desk import AgentDesk
from malletrain.scavenger.acquisition.keeper import Keeper
from malletrain.scavenger.sources.base import Observation, QueryStatus, Source

_RETURN_SECONDS = 3.0
"""How long agents of an earlier life have to report again before the first picture."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Acquisition:
    """What holds nodes.

    Attributes:
        desk: Where agents report.
        keeper: Submits and cancels placeholders.
        address: Where the desk listens: host and port.
        follow_demand: Keeps the keeper's demand up to date, for ever.
        watched_only: No placeholder holds the nodes: they are ours only for as long as they are idle.
    """

    desk: AgentDesk
    keeper: Keeper
    address: tuple[str, int]
    follow_demand: Callable[[], Awaitable[None]]
    watched_only: bool = False


class HeldSource:
    """What another source calls idle is offered to the keeper; what the keeper holds is told."""

    def __init__(self, inner: Source, acquisition: Acquisition, debounce_seconds: float, clock: Clock) -> None:
        """Take nothing yet.

        Args:
            inner: Tells which nodes are idle; knows what the keeper holds.
            acquisition: Holds them.
            debounce_seconds: How long a node must be idle before it is taken.
            clock: Wall clock.
        """
        self._inner = inner
        self._desk = acquisition.desk
        self._keeper = acquisition.keeper
        self._acquisition = acquisition
        self._debounce = debounce_seconds
        self._clock = clock
        self._seen: Observation | None = None
        self._since: dict[str, float] = {}
        self._news = asyncio.Event()

    def order(self) -> Sequence[str]:
        """As the other source."""
        return self._inner.order()

    def past_lengths(self) -> Sequence[float]:
        """As the other source."""
        return self._inner.past_lengths()

    def status(self) -> Sequence[QueryStatus]:
        """As the other source."""
        return self._inner.status()

    def close(self) -> None:
        """Placeholders stay: the next life adopts them; they end by themselves when nobody comes."""
        self._inner.close()

    def changed(self) -> None:
        """Agents have come, gone, or been told to leave: tell at once."""
        self._keeper.stir()
        self._news.set()

    async def observations(self) -> AsyncIterator[Observation]:
        """The nodes that are held, whenever that changes; see `Source`."""
        await self._desk.open(*self._acquisition.address)
        tasks = [
            asyncio.create_task(self._follow_inner()),
            asyncio.create_task(self._keeper.run()),
            asyncio.ensure_future(self._acquisition.follow_demand()),
        ]
        try:
            await self._wait_for_returning(tasks)
            while True:
                await self._news.wait()
                self._news.clear()
                for task in tasks:
                    if task.done():
                        task.result()
                self._offer()
                self._leave_taken()
                if self._seen is not None:
                    yield self._held(self._seen)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._desk.close()

    async def _follow_inner(self) -> None:
        try:
            async for observation in self._inner.observations():
                self._seen = observation
                self._news.set()
        finally:
            self._news.set()

    async def _wait_for_returning(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        """After a restart the first picture would be of too few nodes, and jobs would shrink for nothing.

        Where no placeholder says which agents there are, they get the whole time: else each would get a second one.
        """
        deadline = self._clock.monotonic() + _RETURN_SECONDS
        while self._clock.monotonic() < deadline and not any(task.done() for task in tasks):
            told = self._keeper.knows and not self._acquisition.watched_only
            if told and self._keeper.ledger.running <= self._keeper.nodes():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _offer(self) -> None:
        seen = self._seen
        if seen is None or seen.stale:
            self._keeper.offer({}, {})
            return
        latest = self._clock.time() - self._debounce
        free = (node for node, since in seen.idle.items() if since <= latest and node not in self._desk.present)
        self._keeper.offer({node: seen.ends.get(node, float("inf")) for node in free}, seen.facts)

    def _leave_taken(self) -> None:
        """Where nothing holds the nodes, those that are no longer idle are left at once."""
        if self._acquisition.watched_only and self._seen is not None:
            self._desk.dismiss(sorted(self._desk.present.keys() - self._seen.idle.keys()))

    def _held(self, seen: Observation) -> Observation:
        """The picture of what is held. A node that has just been taken may not be in the last answer."""
        now = self._clock.time()
        present = self._desk.present
        self._since = {node: self._since.get(node, seen.idle.get(node, now)) for node in sorted(present)}
        return replace(
            seen,
            time=now,
            idle=dict(self._since),
            watched=seen.idle,
            agents={node: entry.address for node, entry in present.items()},
        )
