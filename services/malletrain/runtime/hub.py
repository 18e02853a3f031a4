"""Publishing to many subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from malletrain.runtime.errors import SlowReaderError

ItemT = TypeVar("ItemT")

MOST_WAITING = 1000
"""Items that may wait for one subscriber. One that is further behind has to begin again, with a snapshot."""


class Subscription(Generic[ItemT]):
    """The items published since the subscription began, in order."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._queue: asyncio.Queue[tuple[ItemT] | None] = asyncio.Queue()
        self._most_waiting = most_waiting
        self._behind = False

    def put(self, item: ItemT) -> None:
        """Add an item, unless too many are waiting: then all are dropped, and the iteration fails."""
        if self._behind:
            return
        if self._queue.qsize() >= self._most_waiting:
            self._behind = True
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(None)
            return
        self._queue.put_nowait((item,))

    def end(self) -> None:
        """End the iteration after the items that are queued."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[ItemT]:
        """The items, as they come.

        Raises:
            SlowReaderError: more than `most_waiting` items were waiting.
        """
        while (entry := await self._queue.get()) is not None:
            yield entry[0]
        if self._behind:
            raise SlowReaderError(f"{self._most_waiting} messages were waiting for this reader: begin again")


class Hub(Generic[ItemT]):
    """Passes every published item to every subscription.

    Subscribe before you read a snapshot, so that no item is missed between the two.
    """

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        """Begin without subscriptions, each of which may keep so many items waiting."""
        self._most_waiting = most_waiting
        self._subscriptions: set[Subscription[ItemT]] = set()
        self._closed = False

    def publish(self, item: ItemT) -> None:
        """Queue an item for every present subscription."""
        for subscription in self._subscriptions:
            subscription.put(item)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription[ItemT]]:
        """Subscribe until the block is left."""
        subscription: Subscription[ItemT] = Subscription(self._most_waiting)
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
