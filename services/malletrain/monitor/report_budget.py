"""Bounds the bytes of reports that wait to be stored: of one job, of one owner, and of all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.runtime.errors import LimitExceededError

_MIB = 1 << 20


@dataclass(frozen=True)
class ReportLimits:
    """What may wait at a time.

    Attributes:
        job_bytes: Of one job, in bytes of messages; as values they take about ten times as much.
        owner_bytes: Of all jobs of one owner.
        all_bytes: Of all jobs.
        job_streams: Streams of one job: one reports, and those before it are ending.
    """

    job_bytes: int = 1 * _MIB
    owner_bytes: int = 4 * _MIB
    all_bytes: int = 16 * _MIB
    job_streams: int = 8


DEFAULT_LIMITS = ReportLimits()


class ReportBudget:
    """Who reads a report takes its bytes first, and gives them back once it is counted.

    Where too much waits, nothing more is read of the stream, and gRPC's flow control slows its reporter down.
    """

    def __init__(self, limits: ReportLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._of_job: Counter[str] = Counter()
        self._of_owner: Counter[str] = Counter()
        self._in_all = 0
        self._owners: dict[str, str] = {}
        self._owner_when_taken: dict[str, str] = {}
        self._streams: Counter[str] = Counter()
        self._less = asyncio.Event()

    def note_owners(self, owners: Iterable[tuple[str, str]], *, snapshot: bool) -> None:
        """Jobs and their owners. A job that is not known yet is its own owner.

        Args:
            owners: Identifiers of jobs, each with its owner.
            snapshot: Whether these are all jobs.
        """
        if snapshot:
            self._owners = {}
        self._owners.update(owners)

    def owner_of(self, job_id: str) -> str:
        """Who submitted a job; empty: not known."""
        return self._owners.get(job_id, "")

    def open(self, job_id: str) -> None:
        """Count a stream of a job.

        Raises:
            LimitExceededError: it has too many; this one is not counted.
        """
        if self._streams[job_id] >= self._limits.job_streams:
            raise LimitExceededError(f"job {job_id} reports by {self._streams[job_id]} streams already")
        self._streams[job_id] += 1

    def close(self, job_id: str) -> None:
        """A stream that was counted has ended."""
        self._streams[job_id] -= 1
        if self._streams[job_id] <= 0:
            del self._streams[job_id]

    async def take(self, job_id: str, size: int) -> None:
        """Wait until a report of so many bytes fits. One that is alone always does."""
        while not self._fits(job_id, size):
            self._less.clear()
            await self._less.wait()
        # The owner under whom it is counted stays the same until it is given back, whatever becomes known meanwhile.
        owner = self._owner_when_taken.setdefault(job_id, self._owners.get(job_id, job_id))
        self._of_job[job_id] += size
        self._of_owner[owner] += size
        self._in_all += size

    def give_back(self, job_id: str, size: int) -> None:
        """A report that was taken is counted, or was no good."""
        owner = self._owner_when_taken.get(job_id, job_id)
        self._of_job[job_id] -= size
        self._of_owner[owner] -= size
        self._in_all -= size
        if self._of_job[job_id] <= 0:
            del self._of_job[job_id]
            self._owner_when_taken.pop(job_id, None)
        if self._of_owner[owner] <= 0:
            del self._of_owner[owner]
        self._less.set()

    def _fits(self, job_id: str, size: int) -> bool:
        owner = self._owner_when_taken.get(job_id) or self._owners.get(job_id, job_id)
        of_job, of_owner = self._of_job.get(job_id, 0), self._of_owner.get(owner, 0)
        return (
            (not of_job or of_job + size <= self._limits.job_bytes)
            and (not of_owner or of_owner + size <= self._limits.owner_bytes)
            and (not self._in_all or self._in_all + size <= self._limits.all_bytes)
        )
