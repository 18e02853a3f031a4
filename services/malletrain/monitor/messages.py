"""Converts between protobuf messages and the core's types, and checks what reporters send."""

from __future__ import annotations

import math
from collections.abc import Sequence

from malletrain.monitor.progress import NO_POSITION, FeedUse, RecordColumns, ReportedBatch, first_batches
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
    # Copied once: each look into a message's field costs more than one into a list.
    times = list(columns.unix_seconds)
    samples, positions, workers = list(columns.samples), list(columns.positions), list(columns.workers)
    if times:
        _check_range("batch.first_sequence", columns.first_sequence, 1, MOST_POSITION)
    for name, column in (("samples", samples), ("positions", positions), ("workers", workers)):
        if len(column) != len(times):
            expected = f"as many entries as batch.unix_seconds ({len(times)})"
            raise InvalidInputError(f"batch.{name}", expected, len(column))
    _check_times(times)
    _check_column("samples", samples, 0, MOST_SAMPLES)
    _check_column("positions", positions, NO_POSITION, MOST_POSITION)
    _check_column("workers", workers, 1, MOST_WORKERS)
    return ReportedBatch(
        job_id=request.job_id,
        reporter_id=request.reporter_id,
        first_sequence=columns.first_sequence,
        records=RecordColumns(times, samples, positions, workers),
        slots_per_node=request.slots_per_node,
        dropped_records=request.dropped_records,
        feed=_parse_feed(request.feed) if request.HasField("feed") else None,
    )


def _parse_feed(feed: monitor_pb2.FeedReport) -> FeedUse:
    for name, count in (("received_samples", feed.received_samples), ("prepared_samples", feed.prepared_samples)):
        _check_range(f"feed.{name}", count, 0, MOST_POSITION)
    _check_range("feed.processes", feed.processes, 0, MOST_WORKERS)
    if not math.isfinite(feed.cpu_seconds) or feed.cpu_seconds < 0:
        raise InvalidInputError("feed.cpu_seconds", "a finite number, at least 0", feed.cpu_seconds)
    return FeedUse(feed.received_samples, feed.prepared_samples, feed.cpu_seconds, feed.processes)


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
        feed=_feed_message(tracker.feed),
    )


def _feed_message(feed: FeedUse | None) -> monitor_pb2.FeedReport | None:
    if feed is None:
        return None
    return monitor_pb2.FeedReport(
        received_samples=feed.received,
        prepared_samples=feed.prepared,
        cpu_seconds=feed.cpu_seconds,
        processes=feed.processes,
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


def listed_scaling_message(tracker: JobTracker) -> monitor_pb2.ScalingRecord:
    """The same, and what changes too often for those who watch: first batches, and how long a batch takes."""
    message, stored = scaling_message(tracker), tracker.stored()
    message.first_batches_unix_seconds.extend(first_batches(stored.reporters.values()))
    message.usual_step_seconds = stored.usual_step_seconds
    return message


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidInputError(field, f"{least} to {most}", value)


def _check_column(name: str, column: Sequence[int], least: int, most: int) -> None:
    if column and not (least <= min(column) and max(column) <= most):
        index = next(index for index, value in enumerate(column) if not least <= value <= most)
        _check_range(f"batch.{name}[{index}]", column[index], least, most)


def _check_times(column: Sequence[float]) -> None:
    if all(map(math.isfinite, column)) and min(column, default=0) >= 0:
        return
    index = next(index for index, seconds in enumerate(column) if not math.isfinite(seconds) or seconds < 0)
    raise InvalidInputError(f"batch.unix_seconds[{index}]", "finite seconds since the epoch", column[index])
