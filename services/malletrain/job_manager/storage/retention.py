"""Deletes jobs that ended long ago: their logs, and their rows in the databases of Monitor and JobManager.

The files go first and JobManager's rows last. Whatever is interrupted in between is begun again at the next look, since
the rows are still there. What an owner has used is in the ledger, which stays.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from malletrain.common.tasks import ending, lasting
from malletrain.common.user_threads import UserBusyError, UserThreads
from malletrain.job_manager.launching.folder import JobFolder, launch_record
from malletrain.job_manager.machine.jobs import job_id
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.backup.lock import between_backups
from malletrain.runtime.clock import Clock
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.errors import LimitExceededError
from malletrain.v1 import resources_pb2

_BATCH = 100
_DAY_SECONDS = 86_400.0
_LOOK_SECONDS = 3600.0
"""Also before the first look: after a start of the machine its clock may be wrong for a while."""
_PAUSE_SECONDS = 1.0
_OF_OWNER = 10
"""How many jobs of an owner are deleted at once at most; fewer where those suffice."""
_LOOK_AT_OWNERS_SECONDS = 1.0
_PAUSE_OF_OWNER_SECONDS = 60.0
"""Until an owner is looked at again of whom nothing could be removed."""


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
        owners: OwnerBytes | None = None,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            store: Knows which jobs have ended, and when.
            folder: The folder of a job.
            forget: Has Monitor forget jobs; whether it has.
            remove: Deletes jobs, by number, and submissions, by `request_id`, from JobManager's database.
            state_dir: State folder of the installation.
            keep_days: Days for which an ended job is kept; 0: for ever.
            clock: Wall clock.
            owners: What each owner's jobs take; None: jobs are deleted by their age only.
        """
        self._owners = owners
        self._store = store
        self._folder = folder
        self._forget = forget
        self._remove = remove
        self._state_dir = state_dir
        self._keep_seconds = keep_days * _DAY_SECONDS
        self._clock = clock
        self._threads = UserThreads(at_once=1)
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Look at what is old once an hour, and at who has too much all the time, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(ending(self._by_age(), "retention by age"))
            if self._owners is not None:
                group.create_task(lasting(self._by_size(self._owners), "retention by size"))

    async def _by_size(self, owners: OwnerBytes) -> None:
        resting: dict[str, float] = {}
        while True:
            await asyncio.sleep(_LOOK_AT_OWNERS_SECONDS)
            now = self._clock.monotonic()
            resting = {owner: until for owner, until in resting.items() if until > now}
            for owner in owners.above():
                while owner not in resting and owners.is_above(owner):
                    if not await self.relieve(owner, owners):
                        resting[owner] = now + _PAUSE_OF_OWNER_SECONDS

    async def relieve(self, owner: str, owners: OwnerBytes) -> bool:
        """Delete some of the oldest ended jobs of an owner, unless a backup is being made; whether there were any.

        Args:
            owner: Who has too much.
            owners: Is told what is left.
        """
        removed, after = False, 0
        try:
            with between_backups(self._state_dir):
                while not removed:
                    numbers = await asyncio.to_thread(self._store.ended_of, owner, after, _OF_OWNER)
                    if not numbers:
                        break
                    removed, after = bool(await self._remove_of(numbers, math.inf)), numbers[-1]
                used = await asyncio.to_thread(self._store.bytes_of_owners, owner)
                owners.correct(owner, *used.get(owner, (0, 0)))
        except (OSError, DatabaseUnavailableError) as error:
            self._log.warning("jobs of an owner could not be removed, tried again later", owner=owner, error=str(error))
        return removed

    async def _by_age(self) -> None:
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
        return 0 if await self._remove_of(numbers, before) is None else numbers[-1]

    async def _remove_of(self, numbers: Sequence[int], before: float) -> int | None:
        """Delete those jobs of a batch that may go; how many, or None if nothing can be deleted now."""
        removable, requests = await asyncio.to_thread(self._store.removable, numbers, before)
        busy: set[str] = set()
        emptied = [number for number in removable if await self._empty_in_thread(job_id(number), busy)]
        if not emptied:
            return 0
        if not await self._forget([job_id(number) for number in emptied]):
            return None
        await self._remove(emptied, requests)
        self._log.info("ended jobs removed", jobs=len(emptied), first=job_id(emptied[0]), last=job_id(emptied[-1]))
        return len(emptied)

    async def _empty_in_thread(self, identifier: str, busy: set[str]) -> bool:
        """As `_empty`, in a thread of the job's owner: who has filled a folder keeps only its own folders waiting.

        Args:
            identifier: The job.
            busy: Users whose folders are left for later, since one of them has taken too long.
        """
        user = ""
        try:
            if (account := self._folder(identifier).account) is not None:
                user = account.name
            if user in busy:
                return False
            return await self._threads.run(user, lambda: self._empty(identifier))
        except UserBusyError as error:
            if user:
                busy.add(user)
            self._log.warning("files of an ended job stay", job=identifier, error=str(error))
        except Exception as error:  # noqa: BLE001 - one job's folder must not end what deletes those of all others
            self._log.exception("files of an ended job stay", job=identifier, error=str(error))
        return False

    def _empty(self, identifier: str) -> bool:
        """Delete the files of a job; whether that was possible. A folder that is another job's stays as it is."""
        try:
            if (folder := self._folder(identifier)).fault:
                self._log.warning("folder of another job stays", job=identifier, reason=folder.fault)
            else:
                folder.remove_own_files()
            launch_record(self._state_dir, identifier).unlink(missing_ok=True)
        except OSError as error:
            self._log.warning("files of an ended job stay", job=identifier, error=str(error))
            return False
        return True


MIB = 1 << 20
_JOB_BYTES = 2048
"""Of a row besides what was submitted, and of the rows of the journal that every job has."""
_POINT_BYTES = 48
_SCALE_BYTES = 6
"""In the JSON of a row, where a message has two or three."""
_KEPT_SHARE = 0.75
"""Above this share of the quota an owner's oldest ended jobs go, so that what is submitted next finds room."""


def stored_bytes(specs: Iterable[resources_pb2.JobSpec]) -> int:
    """About how many bytes jobs will take."""
    return sum(
        _JOB_BYTES + spec.ByteSize() + _POINT_BYTES * len(spec.curve) + _SCALE_BYTES * len(spec.permitted_nodes)
        for spec in specs
    )


class OwnerBytes:
    """Bytes by owner. Counted by what is submitted, and corrected by what the database says."""

    def __init__(self, stored: Mapping[str, tuple[int, int]], quota_mib: int) -> None:
        """Count from what is stored.

        Args:
            stored: Bytes and number of the jobs of each owner.
            quota_mib: What an owner may have, in MiB.
        """
        self._quota = quota_mib * MIB
        self._bytes: dict[str, int] = {}
        for owner, (size, jobs) in stored.items():
            self.correct(owner, size, jobs)

    def add(self, owner: str, added: int) -> None:
        """Count what an owner submits.

        Raises:
            LimitExceededError: it would be too much; it is not counted.
        """
        present = self._bytes.get(owner, 0)
        if present + added > self._quota:
            raise LimitExceededError(
                f"the jobs of {owner}, those that have ended as well, take {present / MIB:.1f} MiB and these "
                f"{added / MIB:.1f} more: at most {self._quota / MIB:g} (job_manager.max_mib_per_owner); none was "
                "submitted. The oldest that have ended are being removed: try again in a while, cancel jobs, or pass "
                "large values in a file rather than in the environment"
            )
        self._bytes[owner] = present + added

    def correct(self, owner: str, size: int, jobs: int) -> None:
        """Take what the database says: bytes and number of an owner's jobs."""
        self._bytes[owner] = size + jobs * _JOB_BYTES // 2

    def is_above(self, owner: str) -> bool:
        """Whether an owner's oldest ended jobs are to go."""
        return self._bytes.get(owner, 0) > self._quota * _KEPT_SHARE

    def above(self) -> list[str]:
        """Owners whose oldest ended jobs are to go."""
        return [owner for owner in self._bytes if self.is_above(owner)]
