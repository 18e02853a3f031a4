"""What Monitor knows of each job, and what of it has not been stored or published yet. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from malletrain.monitor.progress import (
    FeedUse,
    JobProgress,
    ReportedBatch,
    ReporterSequences,
    ReporterState,
    UsualStep,
    add_late,
    advance,
    advance_steadily,
    is_stalled,
    nodes_needed,
)
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.stalls import MeasuredRescale, StallMeter
from malletrain.monitor.steady_spans import steady_spans, step_seconds
from malletrain.monitor.throughput import MeasuredPoint, ThroughputMeter


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The part of a tracker that is stored: enough to continue after a restart.

    Attributes:
        job_id: The job.
        progress: Its progress.
        dropped_records: Records that its reporters had to drop.
        usual_step_seconds: Duration of its usual step; 0 while unknown.
        reporters: Which records have been counted, by reporter.
        points: Throughput by scale, the present visit included.
        rescales: The newest rescales.
    """

    job_id: str
    progress: JobProgress
    dropped_records: int
    usual_step_seconds: float
    reporters: dict[str, ReporterState]
    points: tuple[MeasuredPoint, ...]
    rescales: tuple[MeasuredRescale, ...]


class JobTracker:
    """Follows one job from record to record. Its memory is bounded."""

    def __init__(self, job_id: str, settings: MonitorSettings, now: float, stored: StoredJob | None = None) -> None:
        """Begin to follow a job.

        Args:
            job_id: The job.
            settings: Limits and factors.
            now: Monotonic time in seconds. Silence counts from here until the first record: while Monitor was down,
                the job could not report.
            stored: What was stored of the job; None for a new one.
        """
        stored = stored or StoredJob(job_id, JobProgress(), 0, 0.0, {}, (), ())
        self.job_id = job_id
        self._settings = settings
        self._last_heard = now
        self._progress = stored.progress
        self._dropped = stored.dropped_records
        self._feed: FeedUse | None = None
        self._reporters = ReporterSequences(stored.reporters)
        self._usual = UsualStep(stored.usual_step_seconds)
        self._throughput = ThroughputMeter(settings, stored.points)
        self._stalls = StallMeter(settings, stored.rescales)

    def add(self, batch: ReportedBatch, now: float) -> None:
        """Count the records of a batch that have not been counted before.

        Args:
            batch: Records of this job, oldest first.
            now: Monotonic time in seconds at which they arrived.
        """
        known, dropped = self._reporters.take(batch)
        self._dropped += dropped
        if batch.feed is not None and self._reporters.is_newest(batch.reporter_id):
            self._feed = batch.feed
        if known == len(batch.records):
            return
        if not self._reporters.is_newest(batch.reporter_id):
            for index in range(known, len(batch.records)):
                self._progress = add_late(self._progress, batch.records[index])
            return
        self._last_heard = now
        fresh = batch.records.part(known, len(batch.records)) if known else batch.records
        self._count(replace(batch, first_sequence=batch.first_sequence + known, records=fresh))

    def _count(self, batch: ReportedBatch) -> None:
        counted = 0
        for begin, end in steady_spans(batch.records):
            counted = self._count_singly(batch, counted, begin)
            # Before the job's second record at a scale its throughput has not begun.
            while counted < end and self._throughput.nodes != self._progress.nodes:
                counted = self._count_singly(batch, counted, counted + 1)
            if counted < end:
                counted = self._count_span(batch, counted, end)
        self._count_singly(batch, counted, len(batch.records))

    def _count_singly(self, batch: ReportedBatch, begin: int, end: int) -> int:
        for index in range(begin, end):
            record = batch.records[index]
            nodes, sequence = nodes_needed(record.workers, batch.slots_per_node), batch.first_sequence + index
            self._progress, step = advance(self._progress, record, batch.reporter_id, sequence, nodes)
            if step is not None:
                self._stalls.add(step, self._usual)
                self._usual.add(step)
                self._throughput.add(step)
        return end

    def _count_span(self, batch: ReportedBatch, begin: int, end: int) -> int:
        span = batch.records.part(begin, end)
        seconds = step_seconds(span.unix_seconds, self._progress.last_record_unix_seconds)
        self._stalls.extend(seconds)
        self._usual.extend(seconds)
        self._throughput.extend(seconds, span.samples, span.unix_seconds)
        self._progress = advance_steadily(self._progress, span, batch.first_sequence + end - 1)
        return end

    def sequence(self, reporter_id: str) -> int:
        """Records of a reporter up to this sequence number are counted; 0 for an unknown reporter."""
        return self._reporters.sequence(reporter_id)

    def silence_seconds(self, now: float) -> float:
        """Time since the newest record arrived."""
        return now - self._last_heard

    def is_stalled(self, now: float) -> bool:
        """Whether the job has been silent for much longer than its usual step; False before its first record."""
        silence = self.silence_seconds(now)
        if not self._progress.records or silence <= 0:
            return False
        return is_stalled(silence, self._usual.seconds, self._settings)

    def drop_steps(self) -> None:
        """Free the memory of single steps; the points stay."""
        self._throughput.end_visit()

    @property
    def progress(self) -> JobProgress:
        """The job's progress."""
        return self._progress

    @property
    def dropped_records(self) -> int:
        """Records that its reporters had to drop."""
        return self._dropped

    @property
    def feed(self) -> FeedUse | None:
        """What a feed does for the newest reporter, as it has last said; None: it has not. It is not stored."""
        return self._feed

    @property
    def rate(self) -> float:
        """Throughput at the present scale in samples/s; 0 while unknown."""
        return self._throughput.rate(self._progress.nodes)

    @property
    def stalls(self) -> StallMeter:
        """What its rescales cost."""
        return self._stalls

    def points(self) -> tuple[MeasuredPoint, ...]:
        """Throughput by scale, nodes ascending."""
        return self._throughput.points()

    def stored(self) -> StoredJob:
        """What is to be stored."""
        return StoredJob(
            job_id=self.job_id,
            progress=self._progress,
            dropped_records=self._dropped,
            usual_step_seconds=self._usual.seconds,
            reporters=self._reporters.states(),
            points=self._throughput.recent_points(),
            rescales=self._stalls.rescales(),
        )


class JobTrackers:
    """The trackers of all jobs."""

    def __init__(self, settings: MonitorSettings, stored: Iterable[StoredJob], now: float) -> None:
        """Continue from what was stored.

        Args:
            settings: Limits and factors of the trackers.
            stored: Content of the store.
            now: Monotonic time in seconds.
        """
        self._settings = settings
        self._trackers = {job.job_id: JobTracker(job.job_id, settings, now, job) for job in stored}
        self._unstored: set[str] = set()
        self._unpublished: set[str] = set()
        self._stalled: set[str] = set()
        self._without_steps: set[str] = set(self._trackers)

    def add(self, batch: ReportedBatch, now: float) -> None:
        """Count a batch. A job becomes known with its first record.

        Args:
            batch: Records of one job.
            now: Monotonic time in seconds at which they arrived.
        """
        tracker = self._trackers.get(batch.job_id)
        if tracker is None:
            if not batch.records:
                return
            tracker = self._trackers[batch.job_id] = JobTracker(batch.job_id, self._settings, now)
        tracker.add(batch, now)
        self._unstored.add(batch.job_id)
        self._unpublished.add(batch.job_id)
        self._without_steps.discard(batch.job_id)

    def forget(self, job_ids: Collection[str]) -> None:
        """Forget jobs; those that are not known are left out."""
        for job_id in job_ids:
            self._trackers.pop(job_id, None)
        for names in (self._unstored, self._unpublished, self._stalled, self._without_steps):
            names.difference_update(job_ids)

    def find(self, job_id: str) -> JobTracker | None:
        """The tracker of a job; None before its first record."""
        return self._trackers.get(job_id)

    def sequence(self, job_id: str, reporter_id: str) -> int:
        """Records of a reporter up to this sequence number are counted; 0 if the job or the reporter is unknown."""
        tracker = self._trackers.get(job_id)
        return tracker.sequence(reporter_id) if tracker else 0

    def select(self, job_ids: Iterable[str] = ()) -> list[JobTracker]:
        """Trackers of these jobs by identifier, of all jobs if none is named. Unknown ones are left out."""
        wanted = set(job_ids) or set(self._trackers)
        return [self._trackers[job_id] for job_id in sorted(wanted) if job_id in self._trackers]

    def heard_lately(self, now: float) -> list[JobTracker]:
        """Trackers of jobs that have reported within `rest_seconds`.

        Args:
            now: Monotonic time in seconds.
        """
        longest = self._settings.rest_seconds
        return [tracker for tracker in self._trackers.values() if tracker.silence_seconds(now) <= longest]

    def take_unstored(self) -> list[StoredJob]:
        """Jobs that have to be stored. If that fails, return their identifiers with `put_back`."""
        jobs = [self._trackers[job_id].stored() for job_id in sorted(self._unstored)]
        self._unstored.clear()
        return jobs

    def put_back(self, job_ids: Iterable[str]) -> None:
        """Mark jobs as not stored."""
        self._unstored.update(job_ids)

    def take_changed(self, now: float) -> list[JobTracker]:
        """Jobs that have reported, stalled, or continued after a stall since the last call.

        Args:
            now: Monotonic time in seconds.
        """
        stalled = {job_id for job_id, tracker in self._trackers.items() if tracker.is_stalled(now)}
        changed = self._unpublished | (stalled ^ self._stalled)
        self._stalled, self._unpublished = stalled, set()
        self._drop_steps_of_silent_jobs(now)
        return [self._trackers[job_id] for job_id in sorted(changed)]

    def _drop_steps_of_silent_jobs(self, now: float) -> None:
        for job_id, tracker in self._trackers.items():
            if job_id not in self._without_steps and tracker.silence_seconds(now) > self._settings.rest_seconds:
                tracker.drop_steps()
                self._without_steps.add(job_id)
