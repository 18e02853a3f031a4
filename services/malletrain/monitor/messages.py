"""Converts between protobuf messages and the core's types, and checks what reporters send."""

from __future__ import annotations

import math
from collections.abc import Sequence

from malletrain.monitor.progress import NO_POSITION, ProgressRecord, ReportedBatch
from malletrain.monitor.trackers import JobTracker
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import monitor_pb2

MOST_SAMPLES = 2**40
"""Largest global batch that is accepted."""

MOST_POSITION = 2**60
"""Largest sample position, sequence number and count that is accepted."""

MOST_WORKERS = 2**24
"""Largest number of worker processes that is accepted."""


def parse_report(request: monitor_pb2.ReportRequest) -> ReportedBatch:
    """Check a reporter's message.

    Raises:
        InvalidInputError: a field is outside its range, or the columns differ in length.
    """
    for name, text in (("job_id", request.job_id), ("reporter_id", request.reporter_id)):
        if not 0 < len(text) <= 256 or "\0" in text:  # PostgreSQL stores no NUL
            raise InvalidInputError(name, "1 to 256 characters other than NUL", text[:300])
    _check_range("slots_per_node", request.slots_per_node, 1, MOST_WORKERS)
    _check_range("dropped_records", request.dropped_records, 0, MOST_POSITION)
    columns = request.batch
    count = len(columns.unix_seconds)
    if count:
        _check_range("batch.first_sequence", columns.first_sequence, 1, MOST_POSITION)
    for name, column in (
        ("samples", columns.samples),
        ("positions", columns.positions),
        ("workers", columns.workers),
    ):
        if len(column) != count:
            raise InvalidInputError(f"batch.{name}", f"as many entries as batch.unix_seconds ({count})", len(column))
    _check_times(columns.unix_seconds)
    _check_column("samples", columns.samples, 0, MOST_SAMPLES)
    _check_column("positions", columns.positions, NO_POSITION, MOST_POSITION)
    _check_column("workers", columns.workers, 1, MOST_WORKERS)
    rows = zip(columns.unix_seconds, columns.samples, columns.positions, columns.workers, strict=True)
    return ReportedBatch(
        job_id=request.job_id,
        reporter_id=request.reporter_id,
        first_sequence=columns.first_sequence,
        records=tuple(ProgressRecord(*row) for row in rows),
        slots_per_node=request.slots_per_node,
        dropped_records=request.dropped_records,
    )


def progress_message(tracker: JobTracker, now: float) -> monitor_pb2.Progress:
    """Progress of a job.

    Args:
        tracker: The job.
        now: Monotonic time in seconds.
    """
    progress = tracker.progress
    return monitor_pb2.Progress(
        job_id=tracker.job_id,
        samples=progress.samples,
        samples_lost=progress.samples_lost,
        rate=tracker.rate,
        nodes=progress.nodes,
        last_record_unix_seconds=progress.last_record_unix_seconds,
        stalled=tracker.is_stalled(now),
        records=progress.records,
        dropped_records=tracker.dropped_records,
    )


def scaling_message(tracker: JobTracker) -> monitor_pb2.ScalingRecord:
    """Throughput at each scale and rescale stalls of a job."""
    stalls = tracker.stalls
    return monitor_pb2.ScalingRecord(
        job_id=tracker.job_id,
        points=[
            monitor_pb2.MeasuredPoint(
                nodes=point.nodes,
                rate=point.rate,
                steps=point.steps,
                unix_seconds=point.unix_seconds,
                relative_error=point.relative_error,
            )
            for point in tracker.points()
        ],
        scale_up_seconds=stalls.scale_up_seconds(),
        scale_down_seconds=stalls.scale_down_seconds(),
        rescales=[
            monitor_pb2.MeasuredRescale(
                from_nodes=rescale.from_nodes,
                to_nodes=rescale.to_nodes,
                stall_seconds=rescale.seconds,
                unix_seconds=rescale.unix_seconds,
            )
            for rescale in stalls.rescales()
        ],
    )


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidInputError(field, f"{least} to {most}", value)


def _check_column(name: str, column: Sequence[int], least: int, most: int) -> None:
    if column and not (least <= min(column) and max(column) <= most):
        index = next(index for index, value in enumerate(column) if not least <= value <= most)
        _check_range(f"batch.{name}[{index}]", column[index], least, most)


def _check_times(column: Sequence[float]) -> None:
    for index, seconds in enumerate(column):
        if not math.isfinite(seconds) or seconds < 0:
            raise InvalidInputError(f"batch.unix_seconds[{index}]", "finite seconds since the epoch", seconds)
