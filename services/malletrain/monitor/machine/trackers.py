"""What Monitor knows of each job, and what of it has not been stored or published yet. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from typing import NamedTuple, Self

from malletrain.model.goodput import GradientNoise
from malletrain.model.scaling import ScaleCommand
from malletrain.monitor.machine.noise import NOTHING_SEEN, NoiseSeen
from malletrain.monitor.machine.options import MonitorOptions
from malletrain.monitor.machine.progress import (
    MAX_COUNT,
    FeedUse,
    JobProgress,
    PhaseSeen,
    ReportedBatch,
    ReporterSequences,
    ReporterState,
    SaveState,
    TrainingStep,
    UsualStep,
    add_late,
    advance,
    advance_steadily,
    is_stalled,
    nodes_needed,
    steady_spans,
    step_seconds,
)
from malletrain.monitor.machine.stalls import MeasuredRescale, ScaleCommands, StallMeter
from malletrain.monitor.machine.throughput import JobSpan, MeasuredPoint, SpanPoint, ThroughputMeter
from malletrain.runtime.kernel.documents import DERIVED, copy_state

_PHASE_HOLDS_SECONDS = 15.0
"""Reporters say every second which phase they are in."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The part of a tracker that is stored: enough to continue after a restart.

    Attributes:
        job_id: The job.
        dropped_records: Records that its reporters had to drop.
        usual_step_seconds: Duration of its usual step; 0 while unknown.
        reporters: Which records have been counted, by reporter.
        points: Throughput by scale, the present visit included.
        rescales: The newest rescales.
        spans: Throughput by scale and by how near the nodes were, the present visit included.
        noise: What it has told of its gradients.
    """

    job_id: str
    progress: JobProgress
    dropped_records: int
    usual_step_seconds: float
    reporters: dict[str, ReporterState]
    points: tuple[MeasuredPoint, ...]
    rescales: tuple[MeasuredRescale, ...]
    spans: tuple[SpanPoint, ...] = ()
    noise: NoiseSeen = NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class JobScaling:
    """What has been measured of a job, as watchers are told.

    Attributes:
        job_id: The job.
        points: Throughput by scale, nodes ascending.
        scale_up_seconds: Median stall of the newest growths in seconds; None before the first.
        scale_down_seconds: Median stall of the newest shrinks in seconds; None before the first.
        rescales: The newest rescales, oldest first.
        checkpoint_seconds: What saving the state and reading it again takes at a rescale; 0: not known, or it does not.
        noise: What the training tells of its gradients; None: nothing, or not all.
    """

    job_id: str
    points: tuple[MeasuredPoint, ...]
    scale_up_seconds: float | None
    scale_down_seconds: float | None
    rescales: tuple[MeasuredRescale, ...]
    checkpoint_seconds: float = 0.0
    noise: GradientNoise | None = None


@dataclass
class JobTracker:
    """Follows one job from record to record. Its memory is bounded.

    Attributes:
        job_id: The job.
        options: Limits and factors.
        now: Monotonic time in seconds. Silence counts from here until the first record: while Monitor was down, the job
            could not report.
        earlier: What was stored of the job; None for a new one.
        commands: The scales that it was commanded before its first record.
    """

    job_id: str
    options: MonitorOptions
    now: InitVar[float] = 0.0
    earlier: InitVar[StoredJob | None] = None
    commands: InitVar[ScaleCommands | None] = None
    _last_heard: float = field(init=False)
    _progress: JobProgress = field(init=False)
    _dropped: int = field(init=False)
    _feed: FeedUse | None = field(init=False, default=None)
    _saves: SaveState | None = field(init=False, default=None)
    _noise: NoiseSeen = field(init=False)
    _phase: PhaseSeen | None = field(init=False, default=None)
    _phase_told: float = field(init=False)
    _reporters: ReporterSequences = field(init=False)
    _usual: UsualStep = field(init=False)
    _throughput: ThroughputMeter = field(init=False)
    _stalls: StallMeter = field(init=False)

    def __post_init__(self, now: float, earlier: StoredJob | None, commands: ScaleCommands | None) -> None:
        stored = earlier or StoredJob(self.job_id, JobProgress(), 0, 0.0, {}, (), ())
        self._last_heard = self._phase_told = now
        self._progress = stored.progress
        self._dropped = stored.dropped_records
        self._noise = stored.noise
        self._reporters = ReporterSequences(stored.reporters)
        self._usual = UsualStep(stored.usual_step_seconds)
        self._throughput = ThroughputMeter(self.options, stored.points, stored.spans)
        self._stalls = StallMeter(self.options, stored.rescales, commands or ScaleCommands())

    def add(self, batch: ReportedBatch, now: float) -> None:
        """Count the records of a batch that have not been counted before.

        Args:
            batch: Records of this job, oldest first.
            now: Monotonic time in seconds at which they arrived.
        """
        known, dropped = self._reporters.take_batch(batch)
        self._dropped = min(MAX_COUNT, self._dropped + dropped)
        if batch.feed is not None and self._reporters.is_newest(batch.reporter_id):
            self._feed = batch.feed
        if batch.saves is not None and self._reporters.is_newest(batch.reporter_id):
            self._saves = batch.saves
        if batch.noise is not None and self._reporters.is_newest(batch.reporter_id):
            self._noise = batch.noise.after(self._noise)
        self._see_phase(batch, now)
        if known == len(batch.records):
            return
        if not self._reporters.is_newest(batch.reporter_id):
            for index in range(known, len(batch.records)):
                self._progress = add_late(self._progress, batch.records[index], batch.lineage)
                self._stalls.add_late(batch.records.unix_seconds[index])
            return
        self._last_heard = now
        fresh = batch.records.part(known, len(batch.records)) if known else batch.records
        self._count(replace(batch, first_sequence=batch.first_sequence + known, records=fresh))

    def _see_phase(self, batch: ReportedBatch, now: float) -> None:
        """Take in which phase the job is in, by the word of the newest reporter, or of one before its first record."""
        if self._reporters.sequence(batch.reporter_id) and not self._reporters.is_newest(batch.reporter_id):
            return
        if self._phase is not None and batch.phase is None:
            self._last_heard = now  # its silence begins anew
        self._phase, self._phase_told = batch.phase, now

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
            self._progress, step = advance(self._progress, record, batch.reporter_id, sequence, nodes, batch.lineage)
            if step is not None:
                self._stalls.add(step, self._usual, self._redone_seconds(step))
                self._usual.add(step)
                self._throughput.add(step)
        return end

    def _redone_seconds(self, step: TrainingStep) -> float:
        """How long the samples have taken that a step shows to be lost; 0 where positions or rate are not known."""
        if not (step.samples_lost and step.from_nodes != step.to_nodes and self._progress.positioned):
            return 0.0
        rate = self._throughput.rate(step.from_nodes)
        return step.samples_lost / rate if rate > 0 else 0.0

    def _count_span(self, batch: ReportedBatch, begin: int, end: int) -> int:
        span = batch.records.part(begin, end)
        seconds = step_seconds(span.unix_seconds, self._progress.last_record_unix_seconds, span.phase_seconds)
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
        """Whether the job has been silent for much longer than its usual step, and does not say why.

        False before its first record.
        """
        silence = self.silence_seconds(now)
        if not self._progress.records or silence <= 0 or self.phase(now) is not None:
            return False
        return is_stalled(silence, self._usual.seconds, self.options)

    def phase(self, now: float) -> PhaseSeen | None:
        """The phase that the job is in; None: in none, or its reporter has not been heard for a while."""
        silence = now - self._phase_told
        if self._phase is None or silence > _PHASE_HOLDS_SECONDS:
            return None
        return PhaseSeen(self._phase.name, self._phase.seconds + max(0.0, silence))

    def is_pausing(self, now: float) -> bool:
        """Whether the job has been in a phase for so long that it would be stalled without it."""
        phase = self.phase(now)
        return phase is not None and is_stalled(phase.seconds, self._usual.seconds, self.options)

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
    def saves(self) -> SaveState | None:
        """How the newest save went, as a reporter has last said; None: none has. It is not stored."""
        return self._saves

    @property
    def rate(self) -> float:
        """Throughput at the present scale in samples/s; 0 while unknown."""
        return self._throughput.recent_rate(self._progress.nodes)

    @property
    def reporters(self) -> dict[str, ReporterState]:
        """The job's reporters, by identifier."""
        return self._reporters.states()

    @property
    def throughput(self) -> ThroughputMeter:
        """How fast it is at each scale."""
        return self._throughput

    @property
    def stalls(self) -> StallMeter:
        """What its rescales cost."""
        return self._stalls

    def scaling(self) -> JobScaling:
        """Throughput at each scale, and what rescales cost."""
        stalls = self._stalls
        return JobScaling(
            job_id=self.job_id,
            points=self._throughput.recent_points(),
            scale_up_seconds=stalls.scale_up_seconds(),
            scale_down_seconds=stalls.scale_down_seconds(),
            rescales=stalls.rescales(),
            checkpoint_seconds=0.0 if self._saves is None else self._saves.rescale_seconds,
            noise=self._noise.noise,
        )

    def drop_reasons(self) -> None:
        """Forget the texts of errors, on which nothing here depends."""
        self._saves = None if self._saves is None else replace(self._saves, reason="")

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
            spans=self._throughput.span_points(),
            noise=self._noise,
        )


class _Standing(NamedTuple):
    """What of a job changes without a record."""

    stalled: bool = False
    pausing: bool = False
    phase: str = ""

    @classmethod
    def of(cls, tracker: JobTracker, now: float) -> _Standing:
        phase = tracker.phase(now)
        return cls(tracker.is_stalled(now), tracker.is_pausing(now), "" if phase is None else phase.name)


_TRAINS = _Standing()


@dataclass
class JobTrackers:
    """The trackers of all jobs. None of them depends on another one.

    Attributes:
        options: Limits and factors of the trackers.
        stored: Content of the store.
        now: Monotonic time in seconds.
        at: The job that was looked at last: an error is about it.
    """

    options: MonitorOptions
    stored: InitVar[Iterable[StoredJob]] = ()
    now: InitVar[float] = 0.0
    _trackers: dict[str, JobTracker] = field(init=False)
    _early_commands: dict[str, ScaleCommands] = field(init=False, default_factory=dict)
    _unstored: set[str] = field(init=False, default_factory=set)
    _unpublished: set[str] = field(init=False, default_factory=set)
    _standings: dict[str, _Standing] = field(init=False, default_factory=dict)
    _without_steps: set[str] = field(init=False)
    _early_spans: dict[str, JobSpan] = field(init=False, default_factory=dict)
    at: str = field(default="", init=False, compare=False, metadata=DERIVED)

    def __post_init__(self, stored: Iterable[StoredJob], now: float) -> None:
        self._trackers = {job.job_id: JobTracker(job.job_id, self.options, now, job) for job in stored}
        self._without_steps = set(self._trackers)

    def part(self, job_ids: Collection[str]) -> Self:
        """A copy with these jobs only. Nothing of it changes with this one."""
        copied = type(self)(self.options)
        for job_id in job_ids:
            if job_id in self._trackers:
                copied._trackers[job_id] = copy_state(self._trackers[job_id])
            if job_id in self._early_commands:
                copied._early_commands[job_id] = copy_state(self._early_commands[job_id])
            if job_id in self._early_spans:
                copied._early_spans[job_id] = self._early_spans[job_id]
            if job_id in self._standings:
                copied._standings[job_id] = self._standings[job_id]
        copied._unstored = self._unstored.intersection(job_ids)
        copied._unpublished = self._unpublished.intersection(job_ids)
        copied._without_steps = self._without_steps.intersection(job_ids)
        return copied

    def drop_reasons(self) -> None:
        """Forget the texts of errors."""
        for tracker in self._trackers.values():
            tracker.drop_reasons()

    @property
    def job_ids(self) -> frozenset[str]:
        """All jobs of which anything is known, commands included."""
        return frozenset(self._trackers.keys() | self._early_commands.keys())

    def is_news(self, job_id: str, command: ScaleCommand) -> bool:
        """Whether `note_command` would change anything."""
        tracker = self._trackers.get(job_id)
        known = self._early_commands.get(job_id) if tracker is None else tracker.stalls.commands
        return known is None or known.newest != command

    def add(self, batch: ReportedBatch, now: float) -> None:
        """Count a batch. A job becomes known with its first record, or its first phase.

        Args:
            batch: Records of one job.
            now: Monotonic time in seconds at which they arrived.
        """
        self.at = batch.job_id
        tracker = self._trackers.get(batch.job_id)
        if tracker is None:
            if not batch.records and batch.phase is None:
                return
            commands = self._early_commands.pop(batch.job_id, None)
            tracker = self._trackers[batch.job_id] = JobTracker(batch.job_id, self.options, now, commands=commands)
            if (span := self._early_spans.pop(batch.job_id, None)) is not None:
                tracker.throughput.place(span)
        tracker.add(batch, now)
        self._unstored.add(batch.job_id)
        self._unpublished.add(batch.job_id)
        self._without_steps.discard(batch.job_id)

    def note_command(self, job_id: str, command: ScaleCommand) -> None:
        """Take over the newest scale that a job was commanded. The job may have no records yet."""
        self.at = job_id
        tracker = self._trackers.get(job_id)
        if tracker is None:
            self._early_commands.setdefault(job_id, ScaleCommands()).take_command(command)
        elif tracker.stalls.note_command(command):
            self._unstored.add(job_id)
            self._unpublished.add(job_id)

    def place(self, job_id: str, span: JobSpan) -> None:
        """Take in how near each other a job's nodes are. It may have no records yet."""
        self.at = job_id
        if (tracker := self._trackers.get(job_id)) is not None:
            tracker.throughput.place(span)
        elif span.nodes:
            self._early_spans[job_id] = span
        else:
            self._early_spans.pop(job_id, None)

    def keep_commands(self, job_ids: Collection[str]) -> None:
        """Forget the commands of jobs without records, and where they are, unless they are among these."""
        kept_ids = set(job_ids)
        for job_id in self._early_commands.keys() - kept_ids:
            del self._early_commands[job_id]
        for job_id in self._early_spans.keys() - kept_ids:
            del self._early_spans[job_id]

    def forget(self, job_ids: Collection[str]) -> None:
        """Forget jobs; those that are not known are left out."""
        for job_id in job_ids:
            self._trackers.pop(job_id, None)
            self._early_commands.pop(job_id, None)
            self._early_spans.pop(job_id, None)
        for names in (self._unstored, self._unpublished, self._without_steps):
            names.difference_update(job_ids)
        for job_id in job_ids:
            self._standings.pop(job_id, None)

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
        longest = self.options.rest_seconds
        return [tracker for tracker in self._trackers.values() if tracker.silence_seconds(now) <= longest]

    def take_unstored(self) -> list[StoredJob]:
        """Jobs that have to be stored. The caller stores them."""
        jobs = [tracker.stored() for tracker in self._each_of(sorted(self._unstored))]
        self._unstored.clear()
        return jobs

    def take_changed(self, now: float) -> list[JobTracker]:
        """Jobs that have reported, stalled or entered a phase, or continued after that, since the last call.

        Args:
            now: Monotonic time in seconds.
        """
        standing_of_each = ((tracker.job_id, _Standing.of(tracker, now)) for tracker in self._each_of(self._trackers))
        standings = {job_id: standing for job_id, standing in standing_of_each if standing != _TRAINS}
        known = self._standings.keys() | standings.keys()
        moved = {job_id for job_id in known if standings.get(job_id, _TRAINS) != self._standings.get(job_id, _TRAINS)}
        changed = self._unpublished | moved
        self._standings, self._unpublished = standings, set()
        self._drop_steps_of_silent_jobs(now)
        return [self._trackers[job_id] for job_id in sorted(changed)]

    def _drop_steps_of_silent_jobs(self, now: float) -> None:
        for tracker in self._each_of(self._trackers.keys() - self._without_steps):
            if tracker.silence_seconds(now) > self.options.rest_seconds:
                tracker.drop_steps()
                self._without_steps.add(tracker.job_id)

    def _each_of(self, job_ids: Iterable[str]) -> Iterator[JobTracker]:
        for self.at in job_ids:
            yield self._trackers[self.at]
