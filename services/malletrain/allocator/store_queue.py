"""Has items stored from a thread, so that nothing waits for the database."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

import structlog

from malletrain.runtime.database.errors import DatabaseUnavailableError

ItemT = TypeVar("ItemT")

_AT_ONCE = 20
_PAUSE_SECONDS = 1.0


class StoreQueue(Generic[ItemT]):
    """Items that are not stored yet, in order. Those that could not be stored are tried again with the next."""

    def __init__(
        self,
        store: Callable[[Sequence[ItemT]], None],
        what: str,
        most: int,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        """Begin empty.

        Args:
            store: Stores items in one transaction; called in a thread, one call at a time.
            what: What they are, for the log.
            most: So many may wait; then the oldest are dropped.
            pause_seconds: How long after a failure the next attempt follows.
        """
        self._store = store
        self._what = what
        self._pause_seconds = pause_seconds
        self._waiting: deque[ItemT] = deque(maxlen=most)
        self._news = asyncio.Event()
        self._log = structlog.get_logger(__name__)

    @property
    def waiting(self) -> Sequence[ItemT]:
        """What is not stored yet, oldest first."""
        return tuple(self._waiting)

    def put(self, items: Iterable[ItemT]) -> None:
        """Have items stored soon."""
        self._waiting.extend(items)
        if self._waiting:
            self._news.set()

    async def run(self) -> None:
        """Store items until cancelled; then what is left is stored."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    await self._write()
        finally:
            self._store_rest()

    async def _write(self) -> None:
        items = list(islice(self._waiting, _AT_ONCE))
        storing = asyncio.ensure_future(asyncio.to_thread(self._store, items))
        try:
            # A thread can't be cancelled: what it stores must be known before the rest is stored.
            await asyncio.shield(storing)
        except asyncio.CancelledError:
            if not isinstance((await asyncio.gather(storing, return_exceptions=True))[0], BaseException):
                self._drop(items)
            raise
        except DatabaseUnavailableError as error:
            self._log.error(
                f"{self._what} could not be stored, trying again", error=str(error), waiting=len(self._waiting)
            )
            await asyncio.sleep(self._pause_seconds)
        else:
            self._drop(items)

    def _drop(self, stored: Sequence[ItemT]) -> None:
        """Forget what has been stored; others may have been dropped meanwhile, since too many waited."""
        known = {id(item) for item in stored}
        while self._waiting and id(self._waiting[0]) in known:
            self._waiting.popleft()

    def _store_rest(self) -> None:
        try:
            while items := list(islice(self._waiting, _AT_ONCE)):
                self._store(items)
                self._drop(items)
        except DatabaseUnavailableError as error:
            self._log.error(f"the last {self._what} could not be stored", error=str(error), waiting=len(self._waiting))
