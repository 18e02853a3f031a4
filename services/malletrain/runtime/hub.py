"""Publishing to many subscribers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from malletrain.runtime.errors import SlowReaderError

ItemT = TypeVar("ItemT")

MAX_WAITING = 1000
"""Items that may wait for one subscriber. One that is further behind has to begin again, with a snapshot."""

Merge = Callable[[ItemT, ItemT], ItemT | None]
"""One item that says what an earlier and a later one say; None where that takes both."""


def newest(earlier: ItemT, later: ItemT) -> ItemT:
    """Merges items of which each says everything."""
    del earlier
    return later


def newest_of_each(key: Callable[[ItemT], str]) -> Merge[list[ItemT]]:
    """Merges lists of entries that each replace the one before of the same key."""

    def merge(earlier: Sequence[ItemT], later: Sequence[ItemT]) -> list[ItemT]:
        return list({key(entry): entry for entry in (*earlier, *later)}.values())

    return merge


class Subscription(Generic[ItemT]):
    """The items published since the subscription began, in order; merged where they can be and the reader is slow."""

    def __init__(self, max_waiting: int = MAX_WAITING, merge: Merge[ItemT] | None = None) -> None:
        self._items: deque[ItemT] = deque()
        self._waiting = 0
        self._max_waiting = max_waiting
        self._merge = merge
        self._news = asyncio.Event()
        self._behind = False
        self._ended = False

    def put(self, item: ItemT) -> None:
        """Add an item, unless too many are waiting: then all are dropped, and the iteration fails."""
        if self._behind or self._ended:
            return
        if self._waiting >= self._max_waiting:
            self._behind = True
            self._items.clear()
        elif self._items and self._merge is not None and (merged := self._merge(self._items[-1], item)) is not None:
            self._items[-1] = merged
        else:
            self._items.append(item)
        self._waiting += 1
        self._news.set()

    def end(self) -> None:
        """End the iteration after the items that are queued."""
        self._ended = True
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[ItemT]:
        """The items, as they come.

        Raises:
            SlowReaderError: more than `max_waiting` items were waiting.
        """
        while True:
            while self._items:
                item = self._items.popleft()
                self._waiting = len(self._items)
                yield item
            if self._behind:
                raise SlowReaderError(f"{self._max_waiting} messages were waiting for this reader: begin again")
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()


class Hub(Generic[ItemT]):
    """Passes every published item to every subscription.

    Subscribe before you read a snapshot, so that no item is missed between the two.
    """

    def __init__(self, max_waiting: int = MAX_WAITING, merge: Merge[ItemT] | None = None) -> None:
        """
        Args:
            max_waiting: Items that may be published while a subscription waits for its reader.
            merge: Makes one item of two that wait, where that can be; None: each item is passed on as it is.
        """
        self._max_waiting = max_waiting
        self._merge = merge
        self._subscriptions: list[Subscription[ItemT]] = []
        self._closed = False

    def publish(self, item: ItemT) -> None:
        """Queue an item for every present subscription."""
        for subscription in self._subscriptions:
            subscription.put(item)

    @contextmanager
    def subscribe(self, *, first: bool = False) -> Iterator[Subscription[ItemT]]:
        """Subscribe until the block is left.

        Args:
            first: Whether it gets items before the present subscriptions.
        """
        subscription: Subscription[ItemT] = Subscription(self._max_waiting, self._merge)
        if self._closed:
            subscription.end()
        self._subscriptions.insert(0 if first else len(self._subscriptions), subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End every subscription, present and future; for a server that drains."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.end()
