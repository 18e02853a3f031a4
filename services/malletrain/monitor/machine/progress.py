"""What trainers report, and the progress of a job: samples net of rollbacks, scale, usual step, stalled or not. Pure.

A reporter sends records, one for each global batch. Two successive records of a job make a step; throughput and rescale
stalls are measured from steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Self

import numpy as np

from malletrain.monitor.machine.noise import NoiseSeen
from malletrain.monitor.machine.options import MonitorOptions

NO_POSITION = -1
"""Position of a record whose trainer does not tell its sample counter."""

REPORTERS_KEPT = 256
"""Reporters of a job whose sequences are remembered. A rescale that moves rank 0 to another process adds one."""

MIN_RECORDS = 32
"""Fewer records are counted faster one by one."""

MAX_COUNT = 2**61
"""Samples and dropped records are counted up to here: a reporter that tells nonsense fills no column of the store."""

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
        phase_seconds: How long the training was in phases since the record before: not part of the step.
    """

    unix_seconds: float
    samples: int
    position: int
    workers: int
    phase_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records in columns of equal length: entry i of every column is record i.

    Attributes:
        unix_seconds: As in `ProgressRecord`; so are the others.
        samples: Samples of each batch.
        positions: The job's sample counter after each batch, or NO_POSITION.
        workers: Worker processes of the job at each batch.
        phase_seconds: How long the training was in phases since the record before each; empty: in none.
    """

    unix_seconds: Sequence[float] = ()
    samples: Sequence[int] = ()
    positions: Sequence[int] = ()
    workers: Sequence[int] = ()
    phase_seconds: Sequence[float] = ()

    @classmethod
    def of(cls, records: Iterable[ProgressRecord]) -> Self:
        """The columns of records."""
        return cls(*zip(*map(astuple, records), strict=True))

    def __len__(self) -> int:
        return len(self.unix_seconds)

    def __getitem__(self, index: int) -> ProgressRecord:
        paused = self.phase_seconds[index] if self.phase_seconds else 0.0
        return ProgressRecord(
            self.unix_seconds[index], self.samples[index], self.positions[index], self.workers[index], paused
        )

    def part(self, begin: int, end: int) -> RecordColumns:
        """Records from an index to before another one."""
        span = slice(begin, end)
        return RecordColumns(
            self.unix_seconds[span],
            self.samples[span],
            self.positions[span],
            self.workers[span],
            self.phase_seconds[span],
        )


@dataclass(frozen=True, slots=True)
class FeedUse:
    """What a feed does for the process that reports.

    Attributes:
        received: Samples that the feed has prepared for it.
        prepared: Samples that it has prepared itself.
        cpu_seconds: CPU time in which the feed prepares a sample, in seconds; 0: not known.
        processes: How many processes prepare samples for it and those near it, or may; 0: not known.
        running: How many do now; 0: not known.
        rates: Samples/s that they have prepared, by their number.
    """

    received: int
    prepared: int
    cpu_seconds: float = 0.0
    processes: int = 0
    running: int = 0
    rates: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SaveState:
    """How the newest save of a checkpoint went.

    Attributes:
        failures: Saves that have failed since the last one that succeeded; 0: the newest one succeeded.
        reason: Why the newest one failed; empty where it succeeded.
        rescale_seconds: How long saving the state and reading it again takes; 0: not known, or rescales do neither.
    """

    failures: int = 0
    reason: str = ""
    rescale_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """A phase in which a training trains no batches, as its script says.

    Attributes:
        seconds: For how long it has lasted.
    """

    name: str
    seconds: float


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
        lineage: Identifies the processes that hand the model on in memory; empty: not known.
        saves: How the newest save went that the reporter knows of; None: it knows of none.
        phase: The phase that it is in; None: none.
        noise: What it tells of its gradients; None: nothing new.
    """

    job_id: str
    reporter_id: str
    first_sequence: int
    records: RecordColumns
    slots_per_node: int
    dropped_records: int = 0
    feed: FeedUse | None = None
    lineage: str = ""
    saves: SaveState | None = None
    phase: PhaseSeen | None = None
    noise: NoiseSeen | None = None


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
        positioned: Whether the trainer tells its sample counter. `samples` is then the newest value of it. If not, it
            is what has been processed since the model was last taken from disk, as far as is known.
        nodes: Scale in nodes; 0 before the first record.
        last_record_unix_seconds: Time of the newest record in seconds since the epoch; 0 before the first.
        records: Records received.
        reporter_id: The reporter of the newest record.
        sequence: Sequence number of the newest record.
        lineage: The processes that hand on the present model in memory; empty: not known.
    """

    samples: int = 0
    samples_lost: int = 0
    positioned: bool = False
    nodes: int = 0
    last_record_unix_seconds: float = 0.0
    records: int = 0
    reporter_id: str = ""
    sequence: int = 0
    lineage: str = ""

    def begins_anew(self, lineage: str) -> bool:
        """Whether processes of a lineage have the model from disk, and not from those that reported before."""
        return bool(self.lineage and lineage) and self.lineage != lineage


def nodes_needed(workers: int, slots_per_node: int) -> int:
    """Number of nodes that a number of workers occupies."""
    return -(-workers // slots_per_node)


def advance(
    progress: JobProgress, record: ProgressRecord, reporter_id: str, sequence: int, nodes: int, lineage: str = ""
) -> tuple[JobProgress, TrainingStep | None]:
    """Take the next record of the newest reporter into account.

    A record that begins (its position less its samples) before the newest position shows a rollback: the samples
    between the two are lost, and processed again. The sum of samples and samples_lost therefore always equals that of
    all batches, repeated ones included. Without positions a rollback can't be detected, and batches are added up.
    Processes that have begun with what is on disk, and do not tell a position with their first record, have not shown
    that they go on from anything: what was processed before them counts as lost.

    Args:
        progress: Progress before the record.
        reporter_id: Its reporter.
        sequence: Its sequence number within the reporter.
        nodes: Scale in nodes.
        lineage: The processes that hand the model on in memory; empty: not known.

    Returns:
        The progress after the record, and the step that ends with it; None for the job's first record.
    """
    samples, lost, positioned = progress.samples + record.samples, 0, progress.positioned
    if record.position == NO_POSITION and progress.begins_anew(lineage):
        samples, lost, positioned = record.samples, progress.samples, False
    elif record.position != NO_POSITION:
        samples = record.position
        if progress.positioned:
            lost = max(0, progress.samples - max(0, record.position - record.samples))
    same = progress.reporter_id == reporter_id
    step = TrainingStep(
        unix_seconds=record.unix_seconds,
        seconds=_step_seconds(progress, record),
        samples=record.samples,
        from_nodes=progress.nodes,
        to_nodes=nodes,
        contiguous=same and sequence == progress.sequence + 1,
        new_reporter=not same,
        samples_lost=lost,
    )
    after = JobProgress(
        samples=min(MAX_COUNT, samples),
        samples_lost=min(MAX_COUNT, progress.samples_lost + lost),
        positioned=positioned or record.position != NO_POSITION,
        nodes=nodes,
        last_record_unix_seconds=record.unix_seconds,
        records=progress.records + 1,
        reporter_id=reporter_id,
        sequence=sequence,
        lineage=lineage or progress.lineage,
    )
    return after, step if progress.records else None


def _step_seconds(progress: JobProgress, record: ProgressRecord) -> float:
    """Duration of the step that ends with a record, without phases in it; below 0 where clocks disagree."""
    whole = record.unix_seconds - progress.last_record_unix_seconds
    return max(0.0, whole - record.phase_seconds) if whole >= 0 else whole


def steady_spans(records: RecordColumns) -> list[tuple[int, int]]:
    """Spans of records that certainly end steady steps with samples: first index, and the one after the last.

    Most records of a job differ from the one before by their time and position only. Such spans are counted as a
    whole, which is several times as fast as record by record.

    Each of them has the workers of the record before it, is not earlier, loses no samples, and both tell their position
    or neither does. The step of the first record begins before the batch, so it is in no span.

    Args:
        records: Successive records of one reporter.

    Returns:
        The spans in order; those of less than MIN_RECORDS are left out.
    """
    if len(records) <= MIN_RECORDS:
        return []
    seconds, workers = np.asarray(records.unix_seconds, float), np.asarray(records.workers, np.int64)
    samples, positions = np.asarray(records.samples, np.int64), np.asarray(records.positions, np.int64)
    has_position, begins = positions != NO_POSITION, np.maximum(0, positions - samples)
    steady = (workers[1:] == workers[:-1]) & (seconds[1:] >= seconds[:-1]) & (has_position[1:] == has_position[:-1])
    # A record without samples leaves its time to the next one, which is not steady either.
    steady &= (samples[1:] > 0) & (samples[:-1] > 0)
    steady &= ~has_position[1:] | (positions[:-1] <= begins[1:])
    edges = np.flatnonzero(np.diff(steady, prepend=False, append=False)) + 1
    spans = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(begin, end) for begin, end in spans if end - begin >= MIN_RECORDS]


def step_seconds(unix_seconds: Sequence[float], before: float, phase_seconds: Sequence[float] = ()) -> list[float]:
    """Durations of steps in seconds, from the times at which they ended, without phases in them.

    Args:
        unix_seconds: When they ended, in seconds since the epoch; at least one.
        before: When the step before the first one ended.
        phase_seconds: How long the training was in phases in each; empty: in none.
    """
    whole = np.diff(np.asarray(unix_seconds, float), prepend=before)
    if phase_seconds:
        whole = np.maximum(0.0, whole - np.asarray(phase_seconds, float))
    times: list[float] = whole.tolist()
    return times


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
        samples=records.positions[-1] if positioned else min(MAX_COUNT, progress.samples + sum(records.samples)),
        last_record_unix_seconds=records.unix_seconds[-1],
        records=progress.records + len(records),
        sequence=sequence,
    )


def add_late(progress: JobProgress, record: ProgressRecord, lineage: str = "") -> JobProgress:
    """Take a record into account that arrives after a newer reporter has begun.

    Its time and scale are out of date. Its samples count only if the trainer does not tell positions: otherwise the
    newer reporter's positions already show which of its samples were kept. They count as lost if the newer reporter has
    the model from disk.
    """
    late_samples = 0 if progress.positioned else record.samples
    if progress.begins_anew(lineage):
        lost = min(MAX_COUNT, progress.samples_lost + late_samples)
        return replace(progress, samples_lost=lost, records=progress.records + 1)
    return replace(progress, samples=min(MAX_COUNT, progress.samples + late_samples), records=progress.records + 1)


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


@dataclass
class ReporterSequences:
    """Which records of which reporter have been counted, so that none is counted twice."""

    _reporters: dict[str, ReporterState] = field(default_factory=dict)
    _newest: int = field(init=False)

    def __post_init__(self) -> None:
        self._reporters = dict(self._reporters)
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

    def take_batch(self, batch: ReportedBatch) -> tuple[int, int]:
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


@dataclass
class UsualStep:
    """The median duration of the newest steady steps, from an earlier estimate in seconds on; 0 if there is none."""

    _initial: float = 0.0
    _seconds: list[float] = field(init=False, default_factory=list)
    _median: float | None = field(init=False, default=None)

    def add(self, step: TrainingStep) -> None:
        """Take a step into account. Steps that are not steady are ignored."""
        if step.steady:
            self.extend((step.seconds,))

    def extend(self, seconds: Sequence[float]) -> None:
        """Take the durations of steady steps into account."""
        self._seconds.extend(seconds[-_USUAL_STEPS:])
        del self._seconds[:-_USUAL_STEPS]
        self._median = None

    @property
    def seconds(self) -> float:
        """The median in seconds; 0 while unknown."""
        if self._median is None:
            enough = len(self._seconds) >= _USUAL_NEEDED
            self._median = statistics.median(self._seconds) if enough else self._initial
        return self._median


def is_stalled(silence_seconds: float, usual_step_seconds: float, options: MonitorOptions) -> bool:
    """Whether a job has been silent for much longer than its usual step.

    Args:
        silence_seconds: Time since its newest record arrived, or since Monitor started if that is later.
        usual_step_seconds: Duration of its usual step; 0 while unknown.
        options: Factor and lower bounds.
    """
    if silence_seconds <= min(options.stall_floor_seconds, options.stall_unknown_seconds):
        return False
    if usual_step_seconds <= 0:
        return silence_seconds > options.stall_unknown_seconds
    return silence_seconds > max(options.stall_factor * usual_step_seconds, options.stall_floor_seconds)
