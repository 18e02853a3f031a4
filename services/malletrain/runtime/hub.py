"""Publishing to many subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Subscription(Generic[ItemT]):
    """The items published since the subscription began, in order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[ItemT] | None] = asyncio.Queue()

    def put(self, item: ItemT) -> None:
        """Add an item."""
        self._queue.put_nowait((item,))

    def end(self) -> None:
        """End the iteration after the items that are queued."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[ItemT]:
        while (entry := await self._queue.get()) is not None:
            yield entry[0]


class Hub(Generic[ItemT]):
    """Passes every published item to every subscription.

    Subscribe before you read a snapshot, so that no item is missed between the two.
    """

    def __init__(self) -> None:
        self._subscriptions: set[Subscription[ItemT]] = set()
        self._closed = False

    def publish(self, item: ItemT) -> None:
        """Queue an item for every present subscription."""
        for subscription in self._subscriptions:
            subscription.put(item)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription[ItemT]]:
        """Subscribe until the block is left."""
        subscription: Subscription[ItemT] = Subscription()
        if self._closed:
            subscription.end()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def close(self) -> None:
        """End every subscription, present and future; for a server that drains."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.end()
