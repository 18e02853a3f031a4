"""Everything that Monitor knows of one job."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.monitor.progress import (
    JobProgress,
    ReporterLedger,
    ReporterMark,
    UsualStep,
    add_late,
    advance,
    is_stalled,
    nodes_of,
)
from malletrain.monitor.records import Batch
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.stalls import Rescale, StallMeter
from malletrain.monitor.throughput import Point, ThroughputMeter


@dataclass(frozen=True, slots=True)
class StoredJob:
    """What of a job outlives the process: enough to go on as if nothing had happened.

    Attributes:
        job_id: The job.
        progress: Where it stands.
        dropped_records: Records that its reporters had to drop.
        usual_step_seconds: Its usual step; 0 while unknown.
        reporters: Which records are counted, by reporter.
        points: Throughput by scale, the present visit included.
        rescales: The newest rescales.
    """

    job_id: str
    progress: JobProgress
    dropped_records: int
    usual_step_seconds: float
    reporters: dict[str, ReporterMark]
    points: tuple[Point, ...]
    rescales: tuple[Rescale, ...]


class JobTracker:
    """Follows one job from batch to batch. Memory is bounded."""

    def __init__(self, job_id: str, settings: MonitorSettings, now: float) -> None:
        """Begin to listen to a job.

        Args:
            job_id: The job.
            settings: Limits and factors.
            now: Monotonic time in seconds: silence is counted from here until the first record.
        """
        self.job_id = job_id
        self._settings = settings
        self._heard = now
        self._progress = JobProgress()
        self._dropped = 0
        self._ledger = ReporterLedger()
        self._usual = UsualStep()
        self._throughput = ThroughputMeter(settings)
        self._stalls = StallMeter(settings)

    @classmethod
    def restore(cls, stored: StoredJob, settings: MonitorSettings, now: float) -> JobTracker:
        """Go on from what was stored. The time before `now` is no silence: nobody listened."""
        tracker = cls(stored.job_id, settings, now)
        tracker._progress = stored.progress
        tracker._dropped = stored.dropped_records
        tracker._ledger = ReporterLedger(stored.reporters)
        tracker._usual = UsualStep(stored.usual_step_seconds)
        tracker._throughput = ThroughputMeter(settings, stored.points)
        tracker._stalls = StallMeter(settings, stored.rescales)
        return tracker

    def add(self, batch: Batch, now: float) -> None:
        """Count the records of a batch that were not counted before.

        Args:
            batch: Records of this job, oldest first.
            now: Monotonic time in seconds at which they came in.
        """
        known, dropped = self._ledger.take(batch)
        self._dropped += dropped
        if known == len(batch.records):
            return
        if not self._ledger.is_newest(batch.reporter_id):
            for record in batch.records[known:]:
                self._progress = add_late(self._progress, record)
            return
        self._heard = now
        for sequence, record in enumerate(batch.records[known:], batch.first_sequence + known):
            nodes = nodes_of(record.workers, batch.slots_per_node)
            self._progress, step = advance(self._progress, record, batch.reporter_id, sequence, nodes)
            if step is not None:
                self._stalls.add(step, self._usual)
                self._usual.add(step)
                self._throughput.add(step)

    def sequence(self, reporter_id: str) -> int:
        """All records of a reporter up to this sequence are counted."""
        return self._ledger.sequence(reporter_id)

    def silence_seconds(self, now: float) -> float:
        """Time since the newest record came in."""
        return now - self._heard

    def is_stalled(self, now: float) -> bool:
        """Whether the job has been silent for much longer than its usual step. Never before its first record."""
        silence = self.silence_seconds(now)
        if not self._progress.records or silence <= 0:
            return False
        return is_stalled(silence, self._usual.seconds, self._settings)

    def rest(self) -> None:
        """Let go of single steps; figures stay. For jobs that have been silent for long."""
        self._throughput.close_visit()

    @property
    def progress(self) -> JobProgress:
        """Where the job stands."""
        return self._progress

    @property
    def dropped_records(self) -> int:
        """Records that its reporters had to drop."""
        return self._dropped

    @property
    def rate(self) -> float:
        """Samples per second at the present scale; 0 while unknown."""
        return self._throughput.rate(self._progress.nodes)

    def points(self) -> tuple[Point, ...]:
        """Throughput by scale, nodes ascending."""
        return self._throughput.points()

    def stalls(self) -> StallMeter:
        """What its rescales cost."""
        return self._stalls

    def stored(self) -> StoredJob:
        """What has to outlive the process."""
        return StoredJob(
            job_id=self.job_id,
            progress=self._progress,
            dropped_records=self._dropped,
            usual_step_seconds=self._usual.seconds,
            reporters=self._ledger.marks(),
            points=self._throughput.points(),
            rescales=self._stalls.rescales(),
        )
