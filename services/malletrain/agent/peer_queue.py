"""Messages that wait until a peer takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

_MAX_WAITING = 4096

MessageT = TypeVar("MessageT")


class PeerQueue(Generic[MessageT]):
    """A bounded queue to one peer. Use from one event loop.

    A peer that takes nothing fills it; it is then closed, and what waits is dropped. Nobody waits for such a peer.

    Attributes:
        overflowed: Whether it was closed because the peer took nothing.
    """

    def __init__(self, max_waiting: int = _MAX_WAITING) -> None:
        """
        Args:
            max_waiting: Messages that may wait.
        """
        self.overflowed = False
        self._max_waiting = max_waiting
        self._waiting: deque[MessageT] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: MessageT) -> None:
        """Add a message. It is dropped if the queue is closed."""
        if self._closed:
            return
        if len(self._waiting) >= self._max_waiting:
            self.overflowed = True
            self._waiting.clear()
            self._closed = True
        else:
            self._waiting.append(message)
        self._changed.set()

    def close(self) -> None:
        """Take no more messages. Those that wait can still be taken."""
        self._closed = True
        self._changed.set()

    async def next(self) -> MessageT | None:
        """Wait for the next message; None once the queue is closed and empty."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()
