"""Stores batches in order, from a thread, so that no event loop waits for a database. While it is away, they wait.

Two batches wait at most: one that was tried, whose commit may have taken place although an error was reported, and all
later ones merged into one. A batch that was tried is never changed: if its commit did take place, the store recognises
only the identical batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from malletrain.runtime.database.errors import CommitUnknownError, DatabaseUnavailableError

BatchT = TypeVar("BatchT")

_RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class _Numbered(Generic[BatchT]):
    """A batch, and the number of the newest addition in it."""

    batch: BatchT
    last: int


async def _at_once() -> None:
    """Begin a batch at once."""


class WriteBehind(Generic[BatchT]):
    """Stores what is added to it, soon and in order. Use from one event loop.

    Attributes:
        failing: Whether the database did not answer the last time.
    """

    def __init__(
        self,
        store: Callable[[BatchT], object],
        merge: Callable[[BatchT, BatchT], BatchT],
        what: str,
        *,
        on_stored: Callable[[BatchT], object] = lambda _: None,
        on_failed: Callable[[], object] = lambda: None,
        may_begin: Callable[[], Awaitable[object]] = _at_once,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        """
        Args:
            store: Stores a batch in one transaction; called in a thread, one call at a time. Raises
                DatabaseUnavailableError if it may be tried again. The same batch may come again after that.
            merge: One batch that says what an earlier and a later one say; it bounds what waits.
            what: What the batches are, for the log.
            on_stored: Called with each batch that has been stored.
            on_failed: Called after each attempt that the database did not answer.
            may_begin: Waits until a batch may be begun, e.g. for others that belong to it.
            retry_seconds: How long after a failure the next attempt follows, in seconds.
        """
        self.failing = False
        self._store = store
        self._merge = merge
        self._what = what
        self._on_stored = on_stored
        self._on_failed = on_failed
        self._may_begin = may_begin
        self._retry_seconds = retry_seconds
        self._tried: _Numbered[BatchT] | None = None
        self._later: _Numbered[BatchT] | None = None
        self._added = self._stored = 0
        self._writing: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._progress = asyncio.Condition()
        self._log = structlog.get_logger(__name__)

    @property
    def waiting(self) -> tuple[BatchT, ...]:
        """What is not stored yet, as far as is known, in order: two batches at most."""
        return tuple(entry.batch for entry in (self._tried, self._later) if entry is not None)

    @property
    def behind(self) -> bool:
        """Whether anything waits or is being written."""
        return self._tried is not None or self._later is not None

    def add(self, batch: BatchT) -> None:
        """Have a batch stored soon."""
        self._added += 1
        # Never into the batch that was tried: the store must get that one again as it was.
        merged = batch if self._later is None else self._merge(self._later.batch, batch)
        self._later = _Numbered(merged, self._added)
        self._news.set()

    def drop_later(self) -> None:
        """Forget what waits and was not tried yet."""
        self._later = None

    def write_now(self, batch: BatchT) -> None:
        """Store a batch before this returns: for what is only done if it is stored. Nothing else may wait.

        `on_stored` is not called: the caller knows.

        Raises:
            CommitUnknownError: it is stored, or will be: it waits.
            DatabaseUnavailableError: it is not stored, and will not be.
        """
        if self.behind:
            raise DatabaseUnavailableError(self._what)
        try:
            self._store(batch)
        except CommitUnknownError:
            # It may be stored. Only the identical batch, tried again before anything else, can be told from a new one.
            self._added += 1
            self._tried = _Numbered(batch, self._added)
            self._news.set()
            raise

    async def wait_until_stored(self) -> None:
        """Wait until all that was added so far is stored.

        Raises:
            DatabaseUnavailableError: the database does not answer. What was added waits for it.
        """
        last = self._added
        async with self._progress:
            # `behind` is asked, too: what is waited for may have been dropped.
            await self._progress.wait_for(lambda: self._stored >= last or not self.behind or self.failing)
        if self.failing:
            raise DatabaseUnavailableError(self._what)

    async def run(self) -> None:
        """Store what is added, until cancelled. What waits then is for `flush`."""
        while True:
            await self._news.wait()
            await self._may_begin()
            # Cleared before: what is added during `flush` is part of it, or sets this again.
            self._news.clear()
            was_failing = self.failing
            await self.flush()
            if self.failing:
                self._news.set()
                await asyncio.sleep(self._retry_seconds)
            elif was_failing:
                self._log.info("database answers again, all that waited is stored", what=self._what)

    async def flush(self) -> None:
        """Try once to store what waits."""
        while self.behind:
            if self._writing is None:
                self._writing = asyncio.create_task(self._write_next(), name=f"storing {self._what}")
            try:
                # Shielded: whoever is cancelled here must not leave two that write at the same time.
                await asyncio.shield(self._writing)
            except DatabaseUnavailableError:
                return

    async def _write_next(self) -> None:
        # A batch that was tried goes first: were a later one stored before it, it could overwrite what is newer.
        if self._tried is None:
            self._tried, self._later = self._later, None
        entry = self._tried
        assert entry is not None
        try:
            await asyncio.to_thread(self._store, entry.batch)
            self._stored = entry.last
            self._tried, self.failing = None, False
            self._on_stored(entry.batch)
        except DatabaseUnavailableError as error:
            if not self.failing:
                self._log.error("could not be stored, trying again", what=self._what, error=str(error))
            self.failing = True
            self._on_failed()
            raise
        finally:
            self._writing = None
            async with self._progress:
                self._progress.notify_all()
