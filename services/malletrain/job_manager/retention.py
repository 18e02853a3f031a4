"""Deletes jobs that ended long ago: their logs, and their rows in the databases of Monitor and JobManager.

The files go first and JobManager's rows last. Whatever is interrupted in between is begun again at the next look, since
the rows are still there. What an owner has used is in the ledger, which stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import structlog

from malletrain.job_manager.jobs import job_id
from malletrain.job_manager.launching.folder import JobFolder, launch_record
from malletrain.job_manager.store import JobStore
from malletrain.runtime.backup.lock import between_backups
from malletrain.runtime.clock import Clock
from malletrain.runtime.database.errors import DatabaseUnavailableError

_BATCH = 100
_DAY_SECONDS = 86_400.0
_LOOK_SECONDS = 3600.0
"""Also before the first look: after a start of the machine its clock may be wrong for a while."""
_PAUSE_SECONDS = 1.0


class Retention:
    """Deletes ended jobs in small batches."""

    def __init__(
        self,
        store: JobStore,
        folder: Callable[[str], JobFolder],
        forget: Callable[[Collection[str]], Awaitable[bool]],
        remove: Callable[[Collection[int], Collection[str]], Awaitable[None]],
        state_dir: Path,
        keep_days: float,
        clock: Clock,
    ) -> None:
        """Delete nothing yet.

        Args:
            store: Knows which jobs have ended, and when.
            folder: The folder of a job.
            forget: Has Monitor forget jobs; whether it has.
            remove: Deletes jobs, by number, and submissions, by `request_id`, from JobManager's database.
            state_dir: State folder of the installation.
            keep_days: Days for which an ended job is kept; 0: for ever.
            clock: Wall clock.
        """
        self._store = store
        self._folder = folder
        self._forget = forget
        self._remove = remove
        self._state_dir = state_dir
        self._keep_seconds = keep_days * _DAY_SECONDS
        self._clock = clock
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Look once an hour, until cancelled."""
        while self._keep_seconds:
            await asyncio.sleep(_LOOK_SECONDS)
            last = await self.remove_batch()
            while last:
                await asyncio.sleep(_PAUSE_SECONDS)
                last = await self.remove_batch(last)

    async def remove_batch(self, after: int = 0) -> int:
        """Delete some jobs that ended long enough ago, unless a backup is being made.

        Args:
            after: Only jobs with a number above this one.

        Returns:
            The largest number of a job that was looked at; 0: there is none, or nothing can be deleted now.
        """
        try:
            with between_backups(self._state_dir):
                return await self._remove_batch(after)
        except BlockingIOError:
            self._log.info("ended jobs are kept while a backup is made")
        except (OSError, DatabaseUnavailableError) as error:
            self._log.warning("ended jobs could not be removed, tried again later", error=str(error))
        return 0

    async def _remove_batch(self, after: int) -> int:
        before = self._clock.time() - self._keep_seconds
        numbers = await asyncio.to_thread(self._store.ended_before, before, after, _BATCH)
        if not numbers:
            return 0
        removable, requests = await asyncio.to_thread(self._store.removable, numbers, before)
        emptied = [number for number in removable if await asyncio.to_thread(self._empty, job_id(number))]
        if not emptied:
            return numbers[-1]
        if not await self._forget([job_id(number) for number in emptied]):
            return 0
        await self._remove(emptied, requests)
        self._log.info("ended jobs removed", jobs=len(emptied), first=job_id(emptied[0]), last=job_id(emptied[-1]))
        return numbers[-1]

    def _empty(self, identifier: str) -> bool:
        """Delete the files of a job; whether that was possible."""
        try:
            self._folder(identifier).remove_own_files()
            launch_record(self._state_dir, identifier).unlink(missing_ok=True)
        except OSError as error:
            self._log.warning("files of an ended job stay", job=identifier, error=str(error))
            return False
        return True
