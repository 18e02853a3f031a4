"""Postpones publishing, logging and telling until commands that release nodes are on their way.

The main scheduler waits for these nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_TURNS = 4
"""Turns of the event loop until a command that was begun in this one has been handed to gRPC."""


class AfterReleases:
    """Does things in order: at once, or some turns of the event loop later if nodes are being released."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._done = asyncio.Event()
        self._done.set()

    def do(self, work: Callable[[], None], *, releasing: bool) -> None:
        """Do something, after all that waits already.

        Args:
            work: What is done.
            releasing: Whether commands that release nodes have just been begun.
        """
        if not releasing and not self._waiting:
            work()
            return
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._done.clear()
            self._turn(_TURNS)

    async def done(self) -> None:
        """Wait until nothing waits."""
        await self._done.wait()

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
            return
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            if self._waiting:  # one has failed
                self._turn(1)
            else:
                self._done.set()
