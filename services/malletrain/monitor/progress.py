"""What trainers report, and the progress of a job: samples net of rollbacks, scale, usual step, stalled or not. Pure.

A reporter sends records, one for each global batch. Two successive records of a job make a step; throughput and rescale
stalls are measured from steps.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from malletrain.monitor.settings import MonitorSettings

NO_POSITION = -1
"""Position of a record whose trainer does not tell its sample counter."""

REPORTERS_KEPT = 256
"""Reporters of a job whose sequences are remembered. A rescale that moves rank 0 to another process adds one."""

_USUAL_STEPS = 64
_USUAL_NEEDED = 3


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """One global batch of a job.

    Attributes:
        unix_seconds: When the batch ended, in seconds since the epoch.
        samples: Samples of the batch, over all workers.
        position: The job's sample counter after the batch, or NO_POSITION.
        workers: Worker processes of the job.
    """

    unix_seconds: float
    samples: int
    position: int
    workers: int


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records in columns of equal length: entry i of every column is record i.

    Attributes:
        unix_seconds: As in `ProgressRecord`; so are the others.
        samples: Samples of each batch.
        positions: The job's sample counter after each batch, or NO_POSITION.
        workers: Worker processes of the job at each batch.
    """

    unix_seconds: Sequence[float] = ()
    samples: Sequence[int] = ()
    positions: Sequence[int] = ()
    workers: Sequence[int] = ()

    @classmethod
    def of(cls, records: Iterable[ProgressRecord]) -> Self:
        """The columns of records."""
        rows = [(record.unix_seconds, record.samples, record.position, record.workers) for record in records]
        return cls(*zip(*rows, strict=True))

    def __len__(self) -> int:
        return len(self.unix_seconds)

    def __getitem__(self, index: int) -> ProgressRecord:
        return ProgressRecord(self.unix_seconds[index], self.samples[index], self.positions[index], self.workers[index])

    def part(self, begin: int, end: int) -> RecordColumns:
        """Records from an index to before another one."""
        span = slice(begin, end)
        return RecordColumns(self.unix_seconds[span], self.samples[span], self.positions[span], self.workers[span])


@dataclass(frozen=True, slots=True)
class FeedUse:
    """What a feed does for the process that reports.

    Attributes:
        received: Samples that the feed has prepared for it.
        prepared: Samples that it has prepared itself.
        cpu_seconds: CPU time in which the feed prepares a sample, in seconds; 0: not known.
        processes: How many processes prepare samples for it and those near it; 0: not known.
    """

    received: int
    prepared: int
    cpu_seconds: float = 0.0
    processes: int = 0


@dataclass(frozen=True, slots=True)
class ReportedBatch:
    """Successive records of one reporter, sent together.

    Attributes:
        job_id: The job.
        reporter_id: The reporting process. Sequence numbers count within it.
        first_sequence: Sequence number of the first record, from 1. The others follow without gaps.
        records: The records, oldest first, in columns; may be empty.
        slots_per_node: Worker processes per node.
        dropped_records: Records that the reporter has dropped so far.
        feed: What a feed does for the reporter; None: it shares no samples.
    """

    job_id: str
    reporter_id: str
    first_sequence: int
    records: RecordColumns
    slots_per_node: int
    dropped_records: int = 0
    feed: FeedUse | None = None


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The interval between two successive records of a job.

    Attributes:
        unix_seconds: When it ended, in seconds since the epoch.
        seconds: Its duration; negative if the clocks of two reporters disagree.
        samples: Samples of the record at its end.
        from_nodes: Scale at its beginning, in nodes.
        to_nodes: Scale at its end, in nodes.
        contiguous: Whether both records are from one reporter and none is missing between them.
        new_reporter: Whether the record at its end is the first one of a new reporter.
        samples_lost: Samples that were rolled back during it.
    """

    unix_seconds: float
    seconds: float
    samples: int
    from_nodes: int
    to_nodes: int
    contiguous: bool
    new_reporter: bool
    samples_lost: int

    @property
    def steady(self) -> bool:
        """Whether this is an ordinary step: no rescale, no rollback, no missing record."""
        return self.contiguous and self.from_nodes == self.to_nodes and self.samples_lost == 0 and self.seconds >= 0


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of a job after its newest record.

    Attributes:
        samples: Samples processed, net of rollbacks.
        samples_lost: Samples that were processed and rolled back.
        positioned: Whether the trainer tells its sample counter. `samples` is then the newest value of it.
        nodes: Scale in nodes; 0 before the first record.
        last_record_unix_seconds: Time of the newest record in seconds since the epoch; 0 before the first.
        records: Records received.
        reporter_id: The reporter of the newest record.
        sequence: Sequence number of the newest record.
    """

    samples: int = 0
    samples_lost: int = 0
    positioned: bool = False
    nodes: int = 0
    last_record_unix_seconds: float = 0.0
    records: int = 0
    reporter_id: str = ""
    sequence: int = 0


def nodes_needed(workers: int, slots_per_node: int) -> int:
    """Number of nodes that a number of workers occupies."""
    return -(-workers // slots_per_node)


def advance(
    progress: JobProgress, record: ProgressRecord, reporter_id: str, sequence: int, nodes: int
) -> tuple[JobProgress, TrainingStep | None]:
    """Take the next record of the newest reporter into account.

    A record that begins (its position less its samples) before the newest position shows a rollback: the samples
    between the two were processed in vain. The sum of samples and samples_lost therefore always equals the sum of all
    batches, repeated ones included. Without positions a rollback can't be detected, and batches are added up.

    Args:
        progress: Progress before the record.
        record: The record.
        reporter_id: Its reporter.
        sequence: Its sequence number within the reporter.
        nodes: Scale in nodes.

    Returns:
        The progress after the record, and the step that ends with it; None for the job's first record.
    """
    samples, lost = progress.samples + record.samples, 0
    if record.position != NO_POSITION:
        samples = record.position
        if progress.positioned:
            lost = max(0, progress.samples - max(0, record.position - record.samples))
    same = progress.reporter_id == reporter_id
    step = TrainingStep(
        unix_seconds=record.unix_seconds,
        seconds=record.unix_seconds - progress.last_record_unix_seconds,
        samples=record.samples,
        from_nodes=progress.nodes,
        to_nodes=nodes,
        contiguous=same and sequence == progress.sequence + 1,
        new_reporter=not same,
        samples_lost=lost,
    )
    after = JobProgress(
        samples=samples,
        samples_lost=progress.samples_lost + lost,
        positioned=progress.positioned or record.position != NO_POSITION,
        nodes=nodes,
        last_record_unix_seconds=record.unix_seconds,
        records=progress.records + 1,
        reporter_id=reporter_id,
        sequence=sequence,
    )
    return after, step if progress.records else None


def advance_steadily(progress: JobProgress, records: RecordColumns, sequence: int) -> JobProgress:
    """The progress after records that all end steady steps; `advance` says the same of each.

    Args:
        progress: Progress before them.
        records: The records, at least one.
        sequence: Sequence number of the last one within the reporter.
    """
    positioned = records.positions[-1] != NO_POSITION
    return replace(
        progress,
        samples=records.positions[-1] if positioned else progress.samples + sum(records.samples),
        last_record_unix_seconds=records.unix_seconds[-1],
        records=progress.records + len(records),
        sequence=sequence,
    )


def add_late(progress: JobProgress, record: ProgressRecord) -> JobProgress:
    """Take a record into account that arrives after a newer reporter has begun.

    Its time and scale are out of date. Its samples count only if the trainer does not tell positions: otherwise the
    newer reporter's positions already show which of its samples were kept.
    """
    late_samples = 0 if progress.positioned else record.samples
    return replace(progress, samples=progress.samples + late_samples, records=progress.records + 1)


@dataclass(frozen=True, slots=True)
class ReporterState:
    """What is known of one reporter.

    Attributes:
        number: Order of first appearance within the job, from 1.
        sequence: Its records up to this sequence number are counted.
        dropped_records: Records that it has dropped.
        first_unix_seconds: When its first batch ended, in seconds since the epoch; 0: not known.
    """

    number: int
    sequence: int
    dropped_records: int
    first_unix_seconds: float = 0.0


def first_batches(reporters: Iterable[ReporterState]) -> tuple[float, ...]:
    """When the first batches of reporters ended, as far as it is known: oldest first, in seconds since the epoch."""
    return tuple(sorted(one.first_unix_seconds for one in reporters if one.first_unix_seconds))


class ReporterSequences:
    """Which records of which reporter have been counted, so that none is counted twice."""

    def __init__(self, reporters: dict[str, ReporterState] | None = None) -> None:
        self._reporters: dict[str, ReporterState] = dict(reporters or {})
        self._newest = max((reporter.number for reporter in self._reporters.values()), default=0)

    def states(self) -> dict[str, ReporterState]:
        """A copy, by reporter."""
        return dict(self._reporters)

    def sequence(self, reporter_id: str) -> int:
        """Records up to this sequence number are counted; 0 for an unknown reporter."""
        reporter = self._reporters.get(reporter_id)
        return reporter.sequence if reporter else 0

    def is_newest(self, reporter_id: str) -> bool:
        """Whether no other reporter has appeared after this one."""
        reporter = self._reporters.get(reporter_id)
        return reporter is not None and reporter.number == self._newest

    def take(self, batch: ReportedBatch) -> tuple[int, int]:
        """Mark the records of a batch as counted.

        Returns:
            How many of its first records had been counted before, and how many dropped records are newly known.
        """
        before = self._reporters.get(batch.reporter_id)
        if before is None:
            if not batch.records:
                # A keep-alive message: a reporter becomes the newest one with its first record.
                return 0, 0
            self._newest += 1
            first = batch.records.unix_seconds[0] if batch.first_sequence == 1 else 0.0
            before = ReporterState(self._newest, 0, 0, first)
        known = max(0, min(len(batch.records), before.sequence - batch.first_sequence + 1))
        last = batch.first_sequence + len(batch.records) - 1 if batch.records else 0
        dropped = max(before.dropped_records, batch.dropped_records)
        self._reporters[batch.reporter_id] = replace(
            before, sequence=max(before.sequence, last), dropped_records=dropped
        )
        self._forget_oldest()
        return known, dropped - before.dropped_records

    def _forget_oldest(self) -> None:
        while len(self._reporters) > REPORTERS_KEPT:
            del self._reporters[min(self._reporters, key=lambda reporter_id: self._reporters[reporter_id].number)]


class UsualStep:
    """The median duration of the newest steady steps."""

    def __init__(self, initial_seconds: float = 0.0) -> None:
        """Start from an earlier estimate in seconds; 0 if there is none."""
        self._initial = initial_seconds
        self._seconds: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._median: float | None = None

    def add(self, step: TrainingStep) -> None:
        """Take a step into account. Steps that are not steady are ignored."""
        if step.steady:
            self.extend((step.seconds,))

    def extend(self, seconds: Sequence[float]) -> None:
        """Take the durations of steady steps into account."""
        self._seconds.extend(seconds[-_USUAL_STEPS:])
        self._median = None

    @property
    def seconds(self) -> float:
        """The median in seconds; 0 while unknown."""
        if self._median is None:
            enough = len(self._seconds) >= _USUAL_NEEDED
            self._median = statistics.median(self._seconds) if enough else self._initial
        return self._median


def is_stalled(silence_seconds: float, usual_step_seconds: float, settings: MonitorSettings) -> bool:
    """Whether a job has been silent for much longer than its usual step.

    Args:
        silence_seconds: Time since its newest record arrived, or since Monitor started if that is later.
        usual_step_seconds: Duration of its usual step; 0 while unknown.
        settings: Factor and lower bounds.
    """
    if silence_seconds <= min(settings.stall_floor_seconds, settings.stall_unknown_seconds):
        return False
    if usual_step_seconds <= 0:
        return silence_seconds > settings.stall_unknown_seconds
    return silence_seconds > max(settings.stall_factor * usual_step_seconds, settings.stall_floor_seconds)
