"""Converts between protobuf messages and the core's types, and checks what reporters and callers send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from malletrain.model.scaling import ScaleCommand
from malletrain.monitor.machine.progress import (
    NO_POSITION,
    FeedUse,
    PhaseSeen,
    RecordColumns,
    ReportedBatch,
    SaveState,
    first_batches,
)
from malletrain.monitor.machine.stimuli import ScalesCommanded
from malletrain.monitor.machine.trackers import JobScaling, JobTracker
from malletrain.monitor.stragglers.judging import SlowWorker, WorkerTime
from malletrain.monitor.stragglers.slow_nodes import JobPlace, SlowNode
from malletrain.monitor.training_metrics.history import (
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_POINTS,
    LoggedValue,
    at_most,
)
from malletrain.monitor.training_metrics.store import JobHistories
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import FINAL_JOB_STATES, message_of
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2

MAX_SAMPLES = 2**40
"""Largest global batch that is accepted."""

MAX_POSITION = 2**60
"""Largest sample position, sequence number and count that is accepted."""

MAX_SECONDS = 2.0**40
"""Latest time, in seconds since the epoch, and longest phase that is accepted: squares and sums of them are numbers."""

_MAX_PHASE_LENGTH = 31
_MAX_RECORDS = 16_384
"""Of one message. Sidecars send 2,048."""

_MAX_RATES = 16
_MAX_WORKER_TIMES = 4096
_MAX_STEP_SECONDS = 1e6
_MAX_RESCALE_SECONDS = 1e6
_TOLD_SLOW_WORKERS = 16
MAX_WORKERS = 2**24
"""Largest number of worker processes that is accepted."""
MAX_VALUES = 1024
"""How many values of training metrics one message may have."""
PAGE_SIZE = 8
"""Metrics in an answer, where the caller does not say how many."""


def parse_report(request: monitor_pb2.ReportRequest) -> ReportedBatch:
    """Check a reporter's message.

    Raises:
        InvalidInputError: a field is outside its range, or the columns differ in length.
    """
    _check_text("job_id", request.job_id, min_length=1)
    _check_text("reporter_id", request.reporter_id, min_length=1)
    _check_text("lineage", request.lineage, min_length=0)
    _check_range("slots_per_node", request.slots_per_node, 1, MAX_WORKERS)
    _check_range("dropped_records", request.dropped_records, 0, MAX_POSITION)
    columns = request.batch
    if len(columns.unix_seconds) > _MAX_RECORDS:
        raise InvalidInputError("batch.unix_seconds", f"at most {_MAX_RECORDS} records", len(columns.unix_seconds))
    # Copied once: each look into a message's field costs more than one into a list.
    times = list(columns.unix_seconds)
    samples, positions, workers = list(columns.samples), list(columns.positions), list(columns.workers)
    if times:
        _check_range("batch.first_sequence", columns.first_sequence, 1, MAX_POSITION)
    for name, column in (("samples", samples), ("positions", positions), ("workers", workers)):
        if len(column) != len(times):
            expected = f"as many entries as batch.unix_seconds ({len(times)})"
            raise InvalidInputError(f"batch.{name}", expected, len(column))
    _check_times("unix_seconds", times)
    phases = list(columns.phase_seconds)
    if phases and len(phases) != len(times):
        raise InvalidInputError("batch.phase_seconds", f"none or {len(times)} entries", len(phases))
    _check_times("phase_seconds", phases)
    _check_column("samples", samples, 0, MAX_SAMPLES)
    _check_column("positions", positions, NO_POSITION, MAX_POSITION)
    _check_column("workers", workers, 1, MAX_WORKERS)
    return ReportedBatch(
        job_id=request.job_id,
        reporter_id=request.reporter_id,
        first_sequence=columns.first_sequence,
        records=RecordColumns(times, samples, positions, workers, phases),
        slots_per_node=request.slots_per_node,
        dropped_records=request.dropped_records,
        feed=_parse_feed(request.feed) if request.HasField("feed") else None,
        phase=_parse_phase(request.phase) if request.HasField("phase") else None,
        lineage=request.lineage,
        saves=_parse_saves(request.saves) if request.HasField("saves") else None,
    )


def parse_worker_times(request: monitor_pb2.ReportRequest) -> tuple[WorkerTime, ...]:
    """Check what a reporter tells of its job's workers.

    Raises:
        InvalidInputError: a field is outside its range.
    """
    if len(request.worker_times) > _MAX_WORKER_TIMES:
        raise InvalidInputError("worker_times", f"at most {_MAX_WORKER_TIMES} entries", len(request.worker_times))
    return tuple(_parse_times(f"worker_times[{index}]", times) for index, times in enumerate(request.worker_times))


def _parse_times(field: str, times: monitor_pb2.WorkerTimes) -> WorkerTime:
    _check_range(f"{field}.rank", times.rank, 0, _MAX_WORKER_TIMES - 1)
    _check_text(f"{field}.node", times.node, min_length=1)
    _check_range(f"{field}.steps", times.steps, 1, MAX_POSITION)
    if not 0 <= times.step_seconds <= _MAX_STEP_SECONDS:
        raise InvalidInputError(f"{field}.step_seconds", f"0 to {_MAX_STEP_SECONDS:.0f}", times.step_seconds)
    if not 0 <= times.own_seconds <= times.step_seconds:
        raise InvalidInputError(f"{field}.own_seconds", "0 to step_seconds", times.own_seconds)
    return WorkerTime(times.rank, times.node, times.steps, times.own_seconds, times.step_seconds)


def places_of(message: job_manager_pb2.WatchJobsResponse) -> list[JobPlace]:
    """On which nodes jobs are."""
    return [
        JobPlace(job.id, job.owner, frozenset(() if job.state in FINAL_JOB_STATES else job.confirmed_nodes))
        for job in message.jobs
    ]


def slow_node_message(node: SlowNode) -> monitor_pb2.SlowNode:
    """A node that jobs call slow."""
    return message_of(monitor_pb2.SlowNode, node)


def _parse_phase(phase: monitor_pb2.PhaseReport) -> PhaseSeen:
    if not 0 < len(phase.name) <= _MAX_PHASE_LENGTH or not phase.name.isprintable():
        raise InvalidInputError("phase.name", f"1 to {_MAX_PHASE_LENGTH} printable characters", phase.name[:300])
    if not math.isfinite(phase.seconds) or phase.seconds < 0:
        raise InvalidInputError("phase.seconds", "a finite number, at least 0", phase.seconds)
    return PhaseSeen(phase.name, phase.seconds)


def _parse_saves(saves: monitor_pb2.SaveReport) -> SaveState:
    _check_range("saves.failures", saves.failures, 0, MAX_SAMPLES)
    _check_text("saves.reason", saves.reason, min_length=0)
    if not 0 <= saves.rescale_seconds <= _MAX_RESCALE_SECONDS:
        raise InvalidInputError("saves.rescale_seconds", f"0 to {_MAX_RESCALE_SECONDS:.0f}", saves.rescale_seconds)
    return SaveState(saves.failures, saves.reason if saves.failures else "", saves.rescale_seconds)


def _check_text(field: str, text: str, min_length: int) -> None:
    if not min_length <= len(text) <= 256 or "\0" in text:  # PostgreSQL stores no NUL
        raise InvalidInputError(field, f"{min_length} to 256 characters other than NUL", text[:300])


def _parse_feed(feed: monitor_pb2.FeedReport) -> FeedUse:
    for name, count in (("received_samples", feed.received_samples), ("prepared_samples", feed.prepared_samples)):
        _check_range(f"feed.{name}", count, 0, MAX_POSITION)
    _check_range("feed.processes", feed.processes, 0, MAX_WORKERS)
    if not math.isfinite(feed.cpu_seconds) or feed.cpu_seconds < 0:
        raise InvalidInputError("feed.cpu_seconds", "a finite number, at least 0", feed.cpu_seconds)
    _check_range("feed.running", feed.running, 0, MAX_WORKERS)
    rates = _parse_rates(feed.rates)
    return FeedUse(feed.received_samples, feed.prepared_samples, feed.cpu_seconds, feed.processes, feed.running, rates)


def _parse_rates(rates: Sequence[monitor_pb2.PreparingRate]) -> dict[int, float]:
    if len(rates) > _MAX_RATES:
        raise InvalidInputError("feed.rates", f"at most {_MAX_RATES}", len(rates))
    rates_by_processes: dict[int, float] = {}
    for place, each in enumerate(rates):
        _check_range(f"feed.rates[{place}].processes", each.processes, 1, MAX_WORKERS)
        if each.processes in rates_by_processes:
            raise InvalidInputError(f"feed.rates[{place}].processes", "each number once", each.processes)
        if not math.isfinite(each.rate) or each.rate <= 0:
            raise InvalidInputError(f"feed.rates[{place}].rate", "a finite number above 0", each.rate)
        rates_by_processes[each.processes] = each.rate
    return rates_by_processes


def commands_of(message: job_manager_pb2.WatchJobsResponse) -> ScalesCommanded:
    """Which scales JobManager has commanded."""
    return ScalesCommanded(
        tuple(
            (job.id, _command_of(job.scale_command))
            for job in message.jobs
            if job.HasField("scale_command") and job.state not in FINAL_JOB_STATES
        )
    )


def _command_of(message: resources_pb2.ScaleCommand) -> ScaleCommand:
    return ScaleCommand(
        message.number, message.unix_seconds, message.from_nodes, message.to_nodes, message.disturbed_unix_seconds
    )


def progress_message(
    tracker: JobTracker, now: float, slow: Sequence[SlowWorker] = (), measured: int = 0
) -> monitor_pb2.Progress:
    """Progress of a job.

    Args:
        tracker: The job.
        now: Monotonic time in seconds.
        slow: Its workers that are slow, the slowest first.
        measured: Of how many of its workers that is known.
    """
    progress, phase = tracker.progress, tracker.phase(now)
    return monitor_pb2.Progress(
        job_id=tracker.job_id,
        samples=progress.samples,
        samples_lost=progress.samples_lost,
        rate=tracker.rate,
        nodes=progress.nodes,
        last_record_unix_seconds=progress.last_record_unix_seconds,
        stalled=tracker.is_stalled(now),
        pausing=tracker.is_pausing(now),
        phase=None if phase is None else message_of(monitor_pb2.PhaseReport, phase),
        silent_seconds=max(0.0, tracker.silence_seconds(now)),
        records=progress.records,
        dropped_records=tracker.dropped_records,
        feed=_feed_message(tracker.feed),
        positions_known=progress.positioned,
        saves=None if tracker.saves is None else message_of(monitor_pb2.SaveReport, tracker.saves),
        slow_workers=[message_of(monitor_pb2.SlowWorker, worker) for worker in slow[:_TOLD_SLOW_WORKERS]],
        measured_workers=measured,
    )


def _feed_message(feed: FeedUse | None) -> monitor_pb2.FeedReport | None:
    if feed is None:
        return None
    return monitor_pb2.FeedReport(
        received_samples=feed.received,
        prepared_samples=feed.prepared,
        cpu_seconds=feed.cpu_seconds,
        processes=feed.processes,
        running=feed.running,
        rates=[monitor_pb2.PreparingRate(processes=number, rate=rate) for number, rate in feed.rates.items()],
    )


def scaling_message(scaling: JobScaling) -> monitor_pb2.ScalingRecord:
    """Throughput at each scale and rescale stalls of a job."""
    return message_of(
        monitor_pb2.ScalingRecord,
        scaling,
        rescales=[
            message_of(monitor_pb2.MeasuredRescale, rescale, stall_seconds=rescale.seconds)
            for rescale in scaling.rescales
        ],
        first_batches_unix_seconds=(),
        usual_step_seconds=0.0,
        span_points=(),
    )


def listed_scaling_message(tracker: JobTracker) -> monitor_pb2.ScalingRecord:
    """The same, and what changes too often for those who watch: first batches, and how long a batch takes."""
    message, stored = scaling_message(tracker.scaling()), tracker.stored()
    message.first_batches_unix_seconds.extend(first_batches(stored.reporters.values()))
    message.usual_step_seconds = stored.usual_step_seconds
    message.span_points.extend(
        monitor_pb2.SpanPoint(shared_levels=one.shared_levels, point=message_of(monitor_pb2.MeasuredPoint, one.point))
        for one in stored.spans
    )
    return message


def _check_range(field: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise InvalidInputError(field, f"{minimum} to {maximum}", value)


def _check_column(name: str, column: Sequence[int], minimum: int, maximum: int) -> None:
    if column and not (minimum <= min(column) and max(column) <= maximum):
        index = next(index for index, value in enumerate(column) if not minimum <= value <= maximum)
        _check_range(f"batch.{name}[{index}]", column[index], minimum, maximum)


def _check_times(name: str, column: Sequence[float]) -> None:
    if all(map(math.isfinite, column)) and min(column, default=0) >= 0 and max(column, default=0) <= MAX_SECONDS:
        return
    index = next(index for index, seconds in enumerate(column) if not 0 <= seconds <= MAX_SECONDS)
    unit = "seconds since the epoch" if name == "unix_seconds" else "seconds"
    expected = f"{unit}, from 0 to {MAX_SECONDS:.0f}"
    raise InvalidInputError(f"batch.{name}[{index}]", expected, column[index])


def parse_metric_values(request: monitor_pb2.ReportRequest) -> tuple[LoggedValue, ...]:
    """Check what a reporter has sent of its training's metrics.

    Raises:
        InvalidInputError: a field is outside its range.
    """
    if len(request.metric_values) > MAX_VALUES:
        raise InvalidInputError("metric_values", f"at most {MAX_VALUES} entries", len(request.metric_values))
    values: list[LoggedValue] = []
    for index, value in enumerate(request.metric_values):
        parsed = _parse_value(f"metric_values[{index}]", value)
        if values and parsed.number <= values[-1].number:
            raise InvalidInputError(f"metric_values[{index}].number", f"more than {values[-1].number}", parsed.number)
        values.append(parsed)
    return tuple(values)


def check_history_request(request: monitor_pb2.GetMetricHistoryRequest) -> None:
    """Check a request.

    Raises:
        InvalidInputError: a field is outside its range.
    """
    if not 0 < len(request.job_id) <= 256:
        raise InvalidInputError("job_id", "a job identifier of 1 to 256 characters", request.job_id[:300])
    if len(request.names) > MAX_NAMES:
        raise InvalidInputError("names", f"at most {MAX_NAMES} names", len(request.names))
    for index, name in enumerate(request.names):
        _check_name(f"names[{index}]", name)
    if request.max_points and not 2 <= request.max_points <= MAX_POINTS:
        raise InvalidInputError("max_points", f"0, or 2 to {MAX_POINTS}", request.max_points)
    _check_range("page_size", request.page_size, 0, MAX_NAMES)
    if request.page_token:
        _check_name("page_token", request.page_token)


def history_response(stored: JobHistories, max_points: int) -> monitor_pb2.GetMetricHistoryResponse:
    """The answer to a request for what a script has logged.

    Args:
        stored: What is stored of the job.
        max_points: Most points of each metric; 0: all that are kept.
    """
    point_of = partial(message_of, monitor_pb2.MetricPoint)
    histories = [
        monitor_pb2.MetricHistory(name=name, points=map(point_of, at_most(points, max_points or MAX_POINTS)))
        for name, points in stored.histories.items()
    ]
    token = histories[-1].name if stored.more and histories else ""
    return monitor_pb2.GetMetricHistoryResponse(histories=histories, next_page_token=token)


def _parse_value(field: str, value: monitor_pb2.MetricValue) -> LoggedValue:
    _check_name(f"{field}.name", value.name)
    _check_range(f"{field}.number", value.number, 1, MAX_POSITION)
    if not 0 <= value.unix_seconds <= MAX_SECONDS:
        expected = f"seconds since the epoch, from 0 to {MAX_SECONDS:.0f}"
        raise InvalidInputError(f"{field}.unix_seconds", expected, value.unix_seconds)
    _check_range(f"{field}.step", value.step, 0, MAX_POSITION)
    if not math.isfinite(value.value):
        raise InvalidInputError(f"{field}.value", "a finite number", value.value)
    step = value.step if value.HasField("step") else None
    return LoggedValue(value.name, value.number, value.unix_seconds, step, value.value)


def _check_name(field: str, name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or not name.isprintable():
        raise InvalidInputError(field, f"1 to {MAX_NAME_BYTES} bytes of printable characters", name[:300])
