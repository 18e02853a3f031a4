"""Stores changes in order, many in one transaction, from a thread. While the database does not answer, they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from malletrain.job_manager.change import Change, CommitUnknownError
from malletrain.job_manager.jobs import Job
from malletrain.job_manager.store import JobStore
from malletrain.runtime.database.errors import DatabaseUnavailableError

_PAUSE_SECONDS = 0.2
_MOST_EVENTS = 100_000
"""Rows of the journal that wait at most; the oldest are dropped then, and that is logged."""


@dataclass(frozen=True)
class _Batch:
    """Changes that are stored together.

    Attributes:
        change: All of them as one.
        jobs: Jobs that are not in a final state, as they are after them.
        last: Number of the newest of them.
    """

    change: Change
    jobs: Mapping[str, Job]
    last: int

    def followed_by(self, later: _Batch) -> _Batch:
        return _Batch(self.change.followed_by(later.change), later.jobs, later.last)


class ChangeWriter:
    """Stores what is added to it, soon and in order: what was added while one batch is written is the next batch.

    What waits is one batch that was tried before, whose commit may have taken place, and all later ones as one.

    Attributes:
        stored_jobs: Jobs that are not in a final state, as they were last stored.
        failing: Whether the database did not answer the last time.
    """

    def __init__(
        self,
        store: JobStore,
        jobs: Mapping[str, Job],
        on_stored: Callable[[], None],
        may_begin: Callable[[], Awaitable[None]],
    ) -> None:
        """Begin with nothing that waits.

        Args:
            store: Where changes are stored.
            jobs: What is stored now.
            on_stored: Called after each batch.
            may_begin: Waits until a batch may be begun: the thread that stores it takes the interpreter from the loop.
        """
        self.stored_jobs = jobs
        self.failing = False
        self._store = store
        self._on_stored = on_stored
        self._may_begin = may_begin
        self._tried: _Batch | None = None
        self._later: _Batch | None = None
        self._added = self._stored = 0
        self._writing: asyncio.Task[None] | None = None
        self._waits = asyncio.Event()
        self._progress = asyncio.Condition()
        self._log = structlog.get_logger(__name__)

    @property
    def behind(self) -> bool:
        """Whether changes wait or are being written."""
        return self._tried is not None or self._later is not None

    def add(self, change: Change, jobs: Mapping[str, Job]) -> None:
        """Have a change stored soon: what has happened is not refused.

        Args:
            change: The change.
            jobs: Jobs that are not in a final state, as they are after it.
        """
        self._added += 1
        batch = _Batch(change, jobs, self._added)
        later = batch if self._later is None else self._later.followed_by(batch)
        if len(later.change.events) > _MOST_EVENTS:
            self._log.error("rows of the journal dropped: too many wait for the database")
            later = replace(later, change=replace(later.change, events=later.change.events[-_MOST_EVENTS:]))
        self._later = later
        self._waits.set()

    def write_now(self, change: Change, jobs: Mapping[str, Job]) -> None:
        """Store a change before this returns: for what is only done if it is stored. Nothing else may wait.

        Raises:
            CommitUnknownError: it is stored, or will be: it waits.
            DatabaseUnavailableError: it is not stored, and will not be.
        """
        if self.behind:
            raise DatabaseUnavailableError("job_manager")
        try:
            self._store.save(change)
        except CommitUnknownError:
            self._added += 1
            self._tried = _Batch(change, jobs, self._added)
            self._waits.set()
            raise
        self.stored_jobs = jobs

    async def stored(self) -> None:
        """Wait until all that was added so far is stored.

        Raises:
            DatabaseUnavailableError: the database does not answer. What was added waits for it.
        """
        last = self._added
        async with self._progress:
            await self._progress.wait_for(lambda: self._stored >= last or not self.behind or self.failing)
        if self.failing:
            raise DatabaseUnavailableError("job_manager")

    async def run(self) -> None:
        """Store what is added, until cancelled."""
        while True:
            await self._waits.wait()
            await self._may_begin()
            self._waits.clear()
            was_failing = self.failing
            await self.flush()
            if self.failing:
                self._waits.set()
                await asyncio.sleep(_PAUSE_SECONDS)
            elif was_failing:
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
            await asyncio.to_thread(self._store.save, self._tried.change)
            self.stored_jobs, self._stored = self._tried.jobs, self._tried.last
            self._tried, self.failing = None, False
            self._on_stored()
        except DatabaseUnavailableError:
            self.failing = True
            raise
        finally:
            self._writing = None
            async with self._progress:
                self._progress.notify_all()
