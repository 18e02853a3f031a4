"""Monitor's machine as its recorder and replays see it: with one job, since no job matters to another one. Pure."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite

from malletrain.model.topology import MAX_LEVELS
from malletrain.monitor.machine.machine import Effects, MonitorMachine
from malletrain.monitor.machine.progress import MAX_COUNT, REPORTERS_KEPT, ReportedBatch
from malletrain.monitor.machine.stalls import COMMANDS_KEPT, RESCALES_KEPT
from malletrain.monitor.machine.stimuli import BatchesReported, JobsPlaced, ScalesCommanded, Stimulus, StoreJobs
from malletrain.monitor.machine.throughput import MAX_SPAN_POINTS, UNKNOWN_ERROR
from malletrain.monitor.machine.trackers import JobTracker, StoredJob
from malletrain.runtime.errors import InvariantError
from malletrain.runtime.kernel.recording import Moment, RecordedMachine, name_job


@dataclass(frozen=True)
class Advanced:
    """The result of one stimulus.

    Attributes:
        before: What had been counted of its jobs before it.
        effects: What the machine wants done.
    """

    stimulus: Stimulus
    before: Mapping[str, JobCounts]
    effects: Effects


class RecordedMonitor(RecordedMachine[MonitorMachine, Stimulus, Advanced]):
    """How the flight recorder runs and checks Monitor's machine."""

    service = "monitor"
    file_prefix = "monitor-stimuli"
    state_type = MonitorMachine
    stimulus_types = typing.get_args(Stimulus)

    def advance(self, state: MonitorMachine, stimulus: Stimulus, now: Moment) -> Advanced:
        """Tell the machine; an error names the job that it is about."""
        before = counts_of(state, stimulus)
        return Advanced(stimulus, before, advance_naming_job(state, stimulus, now))

    def check(self, before: MonitorMachine, result: Advanced) -> None:
        """Check the jobs of the stimulus."""
        check_advance(before, result.before, result.stimulus, result.effects)

    def copy(self, state: MonitorMachine) -> MonitorMachine:
        """A copy with all jobs, of which a recording has one."""
        return state.part(state.trackers.job_ids)

    def redact_state(self, state: MonitorMachine) -> MonitorMachine:
        """Texts of errors may name files."""
        copied = self.copy(state)
        copied.trackers.drop_reasons()
        return copied

    def redact_stimulus(self, stimulus: Stimulus) -> Stimulus:
        """Texts of errors may name files."""
        if not isinstance(stimulus, BatchesReported):
            return stimulus
        return BatchesReported(tuple(map(_without_reason, stimulus.batches)))

    def describe(self, stimulus: Stimulus) -> str:
        """Batches without their records, which may be thousands."""
        if not isinstance(stimulus, BatchesReported):
            return super().describe(stimulus)
        batches = (
            f"{len(batch.records)} records of {batch.reporter_id!r} from {batch.first_sequence}"
            for batch in stimulus.batches
        )
        return f"BatchesReported({', '.join(batches)})"

    def concerns(self, stimulus: Stimulus, job_id: str) -> bool:
        """Whether a stimulus is about a job."""
        return job_id in jobs_of(stimulus)


def advance_naming_job(machine: MonitorMachine, stimulus: Stimulus, now: Moment) -> Effects:
    """Tell a machine; an error names the job that it is about."""
    try:
        return machine.advance(stimulus, now)
    except Exception as error:
        name_job(error, machine.trackers.at)
        raise


def parts_of(stimulus: Stimulus) -> dict[str, Stimulus]:
    """What batches and commands are to a machine with one job only, by job; nothing of other stimuli."""
    parts: dict[str, Stimulus] = {}
    match stimulus:
        case BatchesReported():
            batches: dict[str, list[ReportedBatch]] = {}
            for batch in stimulus.batches:
                batches.setdefault(batch.job_id, []).append(batch)
            parts = {job_id: BatchesReported(tuple(of_job)) for job_id, of_job in batches.items()}
        case ScalesCommanded():
            parts = {job_id: ScalesCommanded(((job_id, command),)) for job_id, command in stimulus.commands}
        case JobsPlaced():
            parts = {job_id: JobsPlaced(((job_id, span),)) for job_id, span in stimulus.spans}
    return parts


def _without_reason(batch: ReportedBatch) -> ReportedBatch:
    return batch if batch.saves is None else replace(batch, saves=replace(batch.saves, reason=""))


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Figures of a job that never go back.

    Attributes:
        records: Records received.
        samples_lost: Samples that were rolled back.
        trained: Samples processed, those that were rolled back included. It may go back once: where a job begins to
            tell its position.
        positioned: Whether the job tells its position.
        dropped_records: Records that its reporters had to drop.
        rescales: Rescales measured.
        sequences: Up to which sequence number records are counted, by reporter.
    """

    records: int = 0
    samples_lost: int = 0
    trained: int = 0
    positioned: bool = False
    dropped_records: int = 0
    rescales: int = 0
    sequences: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tracker: JobTracker | None) -> JobCounts:
        """The counts of a job; of one without records all are 0."""
        if tracker is None:
            return cls()
        progress = tracker.progress
        return cls(
            records=progress.records,
            samples_lost=progress.samples_lost,
            trained=progress.samples + progress.samples_lost,
            positioned=progress.positioned,
            dropped_records=tracker.dropped_records,
            rescales=tracker.stalls.last_number,
            sequences={reporter_id: reporter.sequence for reporter_id, reporter in tracker.reporters.items()},
        )


def jobs_of(stimulus: Stimulus) -> tuple[str, ...]:
    """The jobs that a stimulus may change, other than by time, in order and each once."""
    match stimulus:
        case BatchesReported():
            return tuple(dict.fromkeys(batch.job_id for batch in stimulus.batches))
        case ScalesCommanded():
            return tuple(dict.fromkeys(job_id for job_id, _ in stimulus.commands))
        case JobsPlaced():
            return tuple(dict.fromkeys(job_id for job_id, _ in stimulus.spans))
        case _:
            return ()


def counts_of(machine: MonitorMachine, stimulus: Stimulus) -> dict[str, JobCounts]:
    """The counts of the jobs that a stimulus may change."""
    return {job_id: JobCounts.of(machine.trackers.find(job_id)) for job_id in jobs_of(stimulus)}


def check_advance(
    machine: MonitorMachine, before: Mapping[str, JobCounts], stimulus: Stimulus, effects: Effects
) -> None:
    """Check the jobs that a stimulus has changed.

    Args:
        machine: The machine after it.
        before: Their counts before it.
        effects: What the machine wants done.

    Raises:
        InvariantError: an invariant is broken; the error names the job, and all invariants of it that are.
    """
    stored = {job.job_id: job for effect in effects if isinstance(effect, StoreJobs) for job in effect.jobs}
    for job_id, counts in before.items():
        tracker = machine.trackers.find(job_id)
        if tracker is None:
            broken = ["is not known any more"] if counts.records else []
        else:
            broken = [*_counts(counts, JobCounts.of(tracker)), *_tracker(tracker)]
            if isinstance(stimulus, BatchesReported):
                arrived = sum(len(batch.records) for batch in stimulus.batches if batch.job_id == job_id)
                broken += _batches(arrived, counts, tracker, stored.get(job_id))
        if broken:
            error = InvariantError("\n".join(f"job {job_id} {text}" for text in broken))
            name_job(error, job_id)
            raise error


def _counts(before: JobCounts, after: JobCounts) -> Iterator[str]:
    for name in ("records", "samples_lost", "dropped_records", "rescales"):
        if getattr(after, name) < getattr(before, name):
            yield f"has {getattr(after, name)} {name}, after {getattr(before, name)}"
    if after.trained < before.trained and not (after.positioned and not before.positioned):
        yield f"has trained {after.trained} samples, after {before.trained}"
    if len(before.sequences) < REPORTERS_KEPT:  # beyond that, one may be forgotten and come back as a new one
        for name, sequence in before.sequences.items():
            if sequence > (now := after.sequences.get(name, 0)):
                yield f"has records of {name!r} up to {now}, after {sequence}"


def _batches(arrived: int, before: JobCounts, tracker: JobTracker, stored: StoredJob | None) -> Iterator[str]:
    fresh = tracker.progress.records - before.records
    if fresh > arrived:
        yield f"has {fresh} records more, and {arrived} have arrived"
    if stored is None or stored.progress != tracker.progress:
        yield f"is stored as {stored and stored.progress}, and is {tracker.progress}"


def _tracker(tracker: JobTracker) -> Iterator[str]:
    yield from _progress(tracker)
    yield from _throughput(tracker)
    yield from _rescales(tracker)


def _progress(tracker: JobTracker) -> Iterator[str]:
    progress, reporters = tracker.progress, tracker.reporters
    for name in ("samples", "samples_lost"):
        if not 0 <= getattr(progress, name) <= MAX_COUNT:
            yield f"has {getattr(progress, name)} {name}"
    if not 0 <= tracker.dropped_records <= MAX_COUNT:
        yield f"has {tracker.dropped_records} dropped records"
    if not isfinite(progress.last_record_unix_seconds) or (progress.nodes < 1 and progress.records):
        yield f"has records on {progress.nodes} nodes, the newest at {progress.last_record_unix_seconds}"
    if len(reporters) > REPORTERS_KEPT:
        yield f"has {len(reporters)} reporters"
    if len({reporter.number for reporter in reporters.values()}) < len(reporters):
        yield "has two reporters of one number"
    newest = reporters.get(progress.reporter_id)
    if newest is not None and (
        newest.sequence != progress.sequence or newest.number < max(one.number for one in reporters.values())
    ):
        yield f"has its newest record from {progress.reporter_id!r}, number {progress.sequence}, which is {newest}"


def _throughput(tracker: JobTracker) -> Iterator[str]:
    throughput = tracker.throughput
    if len(throughput.steps) > tracker.options.window_steps:
        yield f"keeps {len(throughput.steps)} steps"
    if any(not seconds >= 0 or samples <= 0 for seconds, samples in throughput.steps):
        yield "keeps a step without samples, or of less than no time"
    points = throughput.known_points
    for point in points:
        figures = (point.rate, point.weight)
        if point.nodes < 1 or point.steps < 1 or not all(isfinite(one) and one > 0 for one in figures):
            yield f"has a point that is none: {point}"
        if not 0 <= point.relative_error <= UNKNOWN_ERROR:
            yield f"has a point with an error of {point.relative_error}"
    if any(left.nodes >= right.nodes for left, right in pairwise(points)):
        yield "has points that do not ascend"
    spans = throughput.span_points()
    if len(spans) > MAX_SPAN_POINTS or any(not 0 <= one.shared_levels <= MAX_LEVELS for one in spans):
        yield f"has {len(spans)} points by nearness of nodes: {spans}"


def _rescales(tracker: JobTracker) -> Iterator[str]:
    rescales, numbers = tracker.stalls.rescales(), tracker.stalls.commands.numbers()
    if len(rescales) > RESCALES_KEPT or len(numbers) > COMMANDS_KEPT:
        yield f"keeps {len(rescales)} rescales and {len(numbers)} commands"
    if any(right.number != left.number + 1 for left, right in pairwise(rescales)):
        yield f"has rescales with numbers {[rescale.number for rescale in rescales]}"
    if any(left >= right for left, right in pairwise(numbers)):
        yield f"has commands with numbers {numbers}"
    for rescale in rescales:
        if rescale.from_nodes == rescale.to_nodes or not isfinite(rescale.seconds) or rescale.seconds < 0:
            yield f"has a rescale that is none: {rescale}"
