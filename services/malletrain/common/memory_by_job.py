"""What follows from the terms of a job, remembered by job: it hardly ever changes from one use to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")

_MAX_JOBS = 20_000


class MemoryByJob(Generic[ValueT]):
    """The newest value of each job, with what it follows from. May be used by several threads."""

    def __init__(self, max_jobs: int = _MAX_JOBS) -> None:
        """
        Args:
            max_jobs: Beyond so many, all are forgotten.
        """
        self._max_jobs = max_jobs
        self._known: dict[str, tuple[tuple[object, ...], ValueT]] = {}

    def value(self, job_id: str, terms: tuple[object, ...], make: Callable[[], ValueT]) -> ValueT:
        """The value that follows from a job's terms; made anew if they are not equal to the newest ones.

        Args:
            job_id: The job.
            terms: All that the value depends on. Objects that are the same as at the last use are not looked into.
            make: Makes the value. What it raises is raised.
        """
        known = self._known.get(job_id)
        if known is not None and known[0] == terms:
            self._known[job_id] = terms, known[1]  # else equal objects would be looked into each time from now on
            return known[1]
        if len(self._known) >= self._max_jobs:
            self._known.clear()
        value = make()
        self._known[job_id] = terms, value
        return value

    def forget(self, job_id: str) -> None:
        """Forget what follows from a job, if anything is known: it has ended."""
        self._known.pop(job_id, None)
