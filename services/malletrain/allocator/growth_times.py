"""How long growths take, from the command to a scale that is confirmed. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from malletrain.allocator.cluster_cache import CachedJob

_KEPT = 5
_KEPT_OF_ALL = 15


@dataclass
class _Job:
    """One job. `since` is None while nothing that is measured is under way."""

    commanded: frozenset[str] = frozenset()
    since: float | None = None
    starts: bool = False
    growths: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    start_seconds: float | None = None


class GrowthTimes:
    """The newest growths of jobs. The first look at a job measures nothing: its command may be older.

    What they take depends on the nodes and on the training environment above all, and on whether standby processes
    wait there. So a job of which nothing is known yet counts like the others.
    """

    def __init__(self) -> None:
        """Know no job."""
        self._jobs: dict[str, _Job] = {}
        self._of_all: deque[float] = deque(maxlen=_KEPT_OF_ALL)

    def see_all(self, jobs: Collection[CachedJob], now: float, *, snapshot: bool) -> None:
        """Take in jobs as JobManager reports them.

        Args:
            jobs: The jobs.
            now: Monotonic time in seconds.
            snapshot: Whether these are all jobs, and changes may have been missed: what is under way is not measured.
        """
        if snapshot:
            present = {job.plannable.id for job in jobs}
            self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in present}
        for job in jobs:
            if job.state.final:
                self._jobs.pop(job.plannable.id, None)
            else:
                self._see(job.plannable.id, frozenset(job.plannable.current_nodes), job.confirmed_nodes, now)
        if snapshot:
            for known in self._jobs.values():
                known.since = None

    def _see(self, job_id: str, commanded: frozenset[str], confirmed: frozenset[str], now: float) -> None:
        job = self._jobs.get(job_id)
        if job is None:
            self._jobs[job_id] = _Job(commanded)
            return
        if commanded != job.commanded:
            grows = bool(commanded - job.commanded)
            job.commanded, job.starts = commanded, not confirmed
            job.since = now if grows else None
        if job.since is not None and commanded == confirmed:
            self._of_all.append(now - job.since)
            if job.starts:
                job.start_seconds = now - job.since
            else:
                job.growths.append(now - job.since)
            job.since = None

    def seconds(self) -> Mapping[str, float]:
        """Median of the newest growths by job, in seconds.

        Before its first growth, how long its newest start took; before that, the median of what all jobs took, also of
        those that have ended. A job is left out while no job has been measured.
        """
        found = {}
        for job_id, job in self._jobs.items():
            if job.growths:
                found[job_id] = statistics.median(job.growths)
            elif job.start_seconds is not None:
                found[job_id] = job.start_seconds
            elif self._of_all:
                found[job_id] = statistics.median(self._of_all)
        return found
