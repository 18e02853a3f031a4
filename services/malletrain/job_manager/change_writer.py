"""Stores changes in order. While the database does not answer, they wait in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from malletrain.job_manager.change import Change, CommitUnknownError
from malletrain.job_manager.store import JobStore
from malletrain.runtime.database.errors import DatabaseUnavailableError

_PAUSE_SECONDS = 0.2
_MOST_EVENTS = 100_000
"""Rows of the journal that wait at most; the oldest are dropped then, and that is logged."""


class ChangeWriter:
    """Stores changes at once while the database answers, else later, from a thread.

    What waits is one change that was tried before, whose commit may have taken place, and all later ones as one.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._tried: Change | None = None
        self._later: Change | None = None
        self._writing: asyncio.Task[None] | None = None
        self._waits = asyncio.Event()
        self._log = structlog.get_logger(__name__)

    @property
    def behind(self) -> bool:
        """Whether changes wait."""
        return self._tried is not None or self._later is not None

    def write(self, change: Change) -> None:
        """Store a change, or have it wait: for what has happened, whether it is stored or not."""
        try:
            self.try_to_write(change)
        except CommitUnknownError:
            return  # it waits already
        except DatabaseUnavailableError:
            self._add(change)

    def try_to_write(self, change: Change) -> None:
        """Store a change now: for what is only done if it is stored.

        Raises:
            CommitUnknownError: it is stored, or will be: it waits.
            DatabaseUnavailableError: it is not stored, and will not be.
        """
        if self.behind:
            raise DatabaseUnavailableError("job_manager")
        try:
            self._store.save(change)
        except CommitUnknownError:
            self._tried = change
            self._waits.set()
            raise

    async def run(self) -> None:
        """Store what waits as soon as the database answers, until cancelled."""
        while True:
            await self._waits.wait()
            await self.flush()
            if self.behind:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._waits.clear()
                self._log.info("all that waited for the database is stored")

    async def flush(self) -> None:
        """Try once to store what waits."""
        while self.behind:
            if self._writing is None:
                self._writing = asyncio.create_task(self._write_next(), name="changes")
            try:
                # Shielded: whoever is cancelled here must not leave two that write at the same time.
                await asyncio.shield(self._writing)
            except DatabaseUnavailableError:
                return

    async def _write_next(self) -> None:
        if self._tried is None:
            self._tried, self._later = self._later, None
        assert self._tried is not None
        try:
            await asyncio.to_thread(self._store.save, self._tried)
            self._tried = None
        finally:
            self._writing = None

    def _add(self, change: Change) -> None:
        later = change if self._later is None else self._later.followed_by(change)
        if len(later.events) > _MOST_EVENTS:
            self._log.error("rows of the journal dropped: too many wait for the database")
            later = replace(later, events=later.events[-_MOST_EVENTS:])
        self._later = later
        self._waits.set()
