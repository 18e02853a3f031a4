"""How far a job is: samples net of rollbacks, its scale, its usual step, and whether it is stalled."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, replace

from malletrain.monitor.records import NO_POSITION, Batch, Record, Step
from malletrain.monitor.settings import MonitorSettings

REPORTERS_KEPT = 256
"""Reporters of a job whose sequences are remembered; each rescale that takes rank 0 away makes a new one."""

_USUAL_STEPS = 64
_USUAL_NEEDED = 3


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a job stands after its newest record.

    Attributes:
        samples: Samples processed, net of rollbacks.
        samples_lost: Samples processed and lost again by rollbacks.
        positioned: The trainer says its positions; `samples` is then the newest of them.
        nodes: Scale in nodes; 0 before the first record.
        last_record_unix_seconds: Time of the newest record; 0 before the first.
        records: Records received.
        reporter_id: The reporter of the newest record.
        sequence: Sequence of the newest record.
    """

    samples: int = 0
    samples_lost: int = 0
    positioned: bool = False
    nodes: int = 0
    last_record_unix_seconds: float = 0.0
    records: int = 0
    reporter_id: str = ""
    sequence: int = 0


def nodes_of(workers: int, slots_per_node: int) -> int:
    """Nodes that hold so many workers."""
    return -(-workers // slots_per_node)


def advance(
    progress: JobProgress, record: Record, reporter_id: str, sequence: int, nodes: int
) -> tuple[JobProgress, Step | None]:
    """Progress after one more record of the newest reporter, and the step that led there.

    A record that begins (position less its samples) before the newest position is a rollback: what lies between the
    two was processed in vain. So samples + samples_lost stays the sum of all batches, whichever of them were redone.
    Without positions rollbacks can't be seen, and batches are added up.

    Args:
        progress: Before the record.
        record: The record.
        reporter_id: Its reporter.
        sequence: Its sequence within the reporter.
        nodes: Scale in nodes.

    Returns:
        The progress after it; the step, or None for the job's first record.
    """
    samples, lost = progress.samples + record.samples, 0
    if record.position != NO_POSITION:
        samples = record.position
        if progress.positioned:
            lost = max(0, progress.samples - max(0, record.position - record.samples))
    same = progress.reporter_id == reporter_id
    step = Step(
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


def add_late(progress: JobProgress, record: Record) -> JobProgress:
    """Progress after a record of a reporter that another one has succeeded meanwhile.

    Its time and scale are past. Its samples count where batches are added up; where positions are known, the
    successor's say already what of them was kept.
    """
    late_samples = 0 if progress.positioned else record.samples
    return replace(progress, samples=progress.samples + late_samples, records=progress.records + 1)


@dataclass(frozen=True, slots=True)
class ReporterMark:
    """What is known of one reporter.

    Attributes:
        number: Order of first appearance within the job, from 1.
        sequence: Its records up to this sequence are counted.
        dropped_records: Records it has dropped.
    """

    number: int
    sequence: int
    dropped_records: int


class ReporterLedger:
    """Which records of which reporter have been counted, so that none counts twice."""

    def __init__(self, marks: dict[str, ReporterMark] | None = None) -> None:
        self._marks: dict[str, ReporterMark] = dict(marks or {})
        self._newest = max((mark.number for mark in self._marks.values()), default=0)

    def marks(self) -> dict[str, ReporterMark]:
        """A copy, by reporter."""
        return dict(self._marks)

    def sequence(self, reporter_id: str) -> int:
        """Everything up to this sequence is counted; 0 for an unknown reporter."""
        mark = self._marks.get(reporter_id)
        return mark.sequence if mark else 0

    def is_newest(self, reporter_id: str) -> bool:
        """No reporter has appeared after this one."""
        mark = self._marks.get(reporter_id)
        return mark is not None and mark.number == self._newest

    def take(self, batch: Batch) -> tuple[int, int]:
        """Note a batch.

        Returns:
            How many of its first records were counted before, and how many drops of the reporter are new.
        """
        mark = self._marks.get(batch.reporter_id)
        if mark is None:
            if not batch.records:
                # A sign of life: only a record makes a reporter the newest one.
                return 0, 0
            self._newest += 1
            mark = ReporterMark(self._newest, 0, 0)
        known = max(0, min(len(batch.records), mark.sequence - batch.first_sequence + 1))
        last = batch.first_sequence + len(batch.records) - 1 if batch.records else 0
        dropped = max(mark.dropped_records, batch.dropped_records)
        self._marks[batch.reporter_id] = ReporterMark(mark.number, max(mark.sequence, last), dropped)
        self._forget_oldest()
        return known, dropped - mark.dropped_records

    def _forget_oldest(self) -> None:
        while len(self._marks) > REPORTERS_KEPT:
            del self._marks[min(self._marks, key=lambda reporter_id: self._marks[reporter_id].number)]


class UsualStep:
    """The median of the newest steady steps, in seconds."""

    def __init__(self, seed_seconds: float = 0.0) -> None:
        """Start from what was known before; 0: nothing."""
        self._seed = seed_seconds
        self._seconds: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._median: float | None = None

    def add(self, step: Step) -> None:
        """Take a step into account if it is a steady one."""
        if step.steady:
            self._seconds.append(step.seconds)
            self._median = None

    @property
    def seconds(self) -> float:
        """The usual step; 0 while unknown."""
        if self._median is None:
            self._median = statistics.median(self._seconds) if len(self._seconds) >= _USUAL_NEEDED else self._seed
        return self._median


def is_stalled(silence_seconds: float, usual_step_seconds: float, settings: MonitorSettings) -> bool:
    """Whether a job has been silent for much longer than its usual step.

    Args:
        silence_seconds: Time since its newest record came in, or since Monitor began to listen if that is later.
        usual_step_seconds: Its usual step; 0 while unknown.
        settings: The factor and the floors.
    """
    if silence_seconds <= min(settings.stall_floor_seconds, settings.stall_unknown_seconds):
        return False
    if usual_step_seconds <= 0:
        return silence_seconds > settings.stall_unknown_seconds
    return silence_seconds > max(settings.stall_factor * usual_step_seconds, settings.stall_floor_seconds)
