"""Does in threads what looks at files and processes of users: an event loop must never wait for what a user has made.

A file may lie on a disk that does not answer, a folder may have a million entries, and a look at a thousand large
processes takes seconds. So each user has a few threads, and no more: whoever makes them wait keeps only itself waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TypeVar

from malletrain.common.tasks import start_thread

_AT_ONCE = 2
_MAX_WAITING = 64
_SECONDS = 30.0

ResultT = TypeVar("ResultT")


class UserBusyError(OSError):
    """What a user has made keeps all threads of that user busy, or takes too long to look at."""


class UserThreads:
    """A few threads for each user. Use from one event loop."""

    def __init__(self, at_once: int = _AT_ONCE, max_waiting: int = _MAX_WAITING, seconds: float = _SECONDS) -> None:
        """
        Args:
            at_once: Threads that look at one user's things at the same time.
            max_waiting: How many may wait for a thread of one user.
            seconds: How long one may take, and how long one may wait for its turn.
        """
        self._at_once = at_once
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._busy: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, list[asyncio.Future[None]]] = {}

    async def run(self, user: Hashable, work: Callable[[], ResultT]) -> ResultT:
        """Do something in a thread.

        A caller that is cancelled does not wait for the end of the thread, which keeps its place until then.

        Args:
            user: Whose things it looks at.
            work: What to do; it must not change what the event loop uses.

        Raises:
            UserBusyError: there are too many waiting, or it takes too long; it may still be going on.
            Exception: what `work` raises.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._turn(user)
        except TimeoutError:
            raise UserBusyError(f"{user}: nothing could be looked at for {self._seconds:g} s") from None
        loop = asyncio.get_running_loop()
        result: asyncio.Future[ResultT] = loop.create_future()

        def tell(value: ResultT | None, error: BaseException | None) -> None:
            self._give_back(user)
            if result.done():
                return
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]

        def do() -> None:
            try:
                value, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - it is raised where the result is waited for
                value, error = None, raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, value, error)

        start_thread(do, f"of user {user}", lambda _: None)
        try:
            async with asyncio.timeout(self._seconds):
                return await result
        except TimeoutError:
            if result.done() and not result.cancelled():
                raise  # it is the work's own
            raise UserBusyError(f"{user}: looking at it takes longer than {self._seconds:g} s") from None

    async def _turn(self, user: Hashable) -> None:
        if self._busy[user] < self._at_once:
            self._busy[user] += 1
            return
        waiting = self._waiting.setdefault(user, [])
        if len(waiting) >= self._max_waiting:
            raise UserBusyError(f"{user}: {len(waiting)} others wait already")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._give_back(user)  # its turn had just come
            elif mine in waiting:
                waiting.remove(mine)
            raise

    def _give_back(self, user: Hashable) -> None:
        """End a turn: the next one who waits takes it over."""
        waiting = self._waiting.get(user, [])
        while waiting:
            following = waiting.pop(0)
            if not following.done():
                following.set_result(None)
                return
        self._waiting.pop(user, None)
        self._busy[user] -= 1
        if not self._busy[user]:
            del self._busy[user]
