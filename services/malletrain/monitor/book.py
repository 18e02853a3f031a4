"""The jobs that Monitor knows, and what about them is not yet stored or not yet published."""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.monitor.records import Batch
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.tracker import JobTracker, StoredJob


class JobBook:
    """All trackers, by job."""

    def __init__(self, settings: MonitorSettings, stored: Iterable[StoredJob], now: float) -> None:
        """Go on from what was stored.

        Args:
            settings: Limits and factors of the trackers.
            stored: What the store holds.
            now: Monotonic time in seconds.
        """
        self._settings = settings
        self._trackers = {job.job_id: JobTracker.restore(job, settings, now) for job in stored}
        self._unstored: set[str] = set()
        self._unpublished: set[str] = set()
        self._stalled: set[str] = set()
        self._resting: set[str] = set(self._trackers)

    def add(self, batch: Batch, now: float) -> None:
        """Count a batch. A job becomes known with its first record."""
        tracker = self._trackers.get(batch.job_id)
        if tracker is None:
            if not batch.records:
                return
            tracker = self._trackers[batch.job_id] = JobTracker(batch.job_id, self._settings, now)
        tracker.add(batch, now)
        self._unstored.add(batch.job_id)
        self._unpublished.add(batch.job_id)
        self._resting.discard(batch.job_id)

    def sequence(self, job_id: str, reporter_id: str) -> int:
        """All records of a reporter up to this sequence are counted; 0 where it is unknown."""
        tracker = self._trackers.get(job_id)
        return tracker.sequence(reporter_id) if tracker else 0

    def select(self, job_ids: Iterable[str] = ()) -> list[JobTracker]:
        """The known ones of these jobs (all where none is named), in the order of their identifiers."""
        wanted = set(job_ids) or set(self._trackers)
        return [self._trackers[job_id] for job_id in sorted(wanted) if job_id in self._trackers]

    def take_unstored(self) -> list[StoredJob]:
        """What has to be written. Give the names back with `put_back` where that fails."""
        jobs = [self._trackers[job_id].stored() for job_id in sorted(self._unstored)]
        self._unstored.clear()
        return jobs

    def put_back(self, job_ids: Iterable[str]) -> None:
        """Note that these jobs could not be written."""
        self._unstored.update(job_ids)

    def take_changed(self, now: float) -> list[JobTracker]:
        """The jobs that have reported, stalled or gone on after a stall since the last call.

        Args:
            now: Monotonic time in seconds.
        """
        stalled = {job_id for job_id, tracker in self._trackers.items() if tracker.is_stalled(now)}
        changed = self._unpublished | (stalled ^ self._stalled)
        self._stalled, self._unpublished = stalled, set()
        self._rest_silent(now)
        return [self._trackers[job_id] for job_id in sorted(changed)]

    def _rest_silent(self, now: float) -> None:
        for job_id, tracker in self._trackers.items():
            if job_id not in self._resting and tracker.silence_seconds(now) > self._settings.rest_seconds:
                tracker.rest()
                self._resting.add(job_id)
