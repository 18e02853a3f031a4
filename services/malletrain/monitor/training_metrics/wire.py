"""Converts between protobuf messages and training metrics, and checks what reporters and callers send."""

from __future__ import annotations

import math
from collections.abc import Iterable

from malletrain.monitor.training_metrics.history import (
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_POINTS,
    HistoryPoint,
    LoggedValue,
    at_most,
)
from malletrain.monitor.training_metrics.store import JobHistories
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import message_of
from malletrain.v1 import monitor_pb2

MAX_VALUES = 1024
"""How many values one message may have."""
PAGE_SIZE = 8
"""Metrics in an answer, where the caller does not say how many."""
_MAX_NUMBER = 2**60
_MAX_SECONDS = 2.0**40


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
    if not 0 <= request.page_size <= MAX_NAMES:
        raise InvalidInputError("page_size", f"0 to {MAX_NAMES}", request.page_size)
    if request.page_token:
        _check_name("page_token", request.page_token)


def history_response(stored: JobHistories, max_points: int) -> monitor_pb2.GetMetricHistoryResponse:
    """The answer to a request for what a script has logged.

    Args:
        stored: What is stored of the job.
        max_points: Most points of each metric; 0: all that are kept.
    """
    histories = [
        monitor_pb2.MetricHistory(name=name, points=_points(at_most(points, max_points or MAX_POINTS)))
        for name, points in stored.histories.items()
    ]
    token = histories[-1].name if stored.more and histories else ""
    return monitor_pb2.GetMetricHistoryResponse(histories=histories, next_page_token=token)


def _parse_value(field: str, value: monitor_pb2.MetricValue) -> LoggedValue:
    _check_name(f"{field}.name", value.name)
    if not 1 <= value.number <= _MAX_NUMBER:
        raise InvalidInputError(f"{field}.number", f"1 to {_MAX_NUMBER}", value.number)
    if not 0 <= value.unix_seconds <= _MAX_SECONDS:
        expected = f"seconds since the epoch, from 0 to {_MAX_SECONDS:.0f}"
        raise InvalidInputError(f"{field}.unix_seconds", expected, value.unix_seconds)
    if not 0 <= value.step <= _MAX_NUMBER:
        raise InvalidInputError(f"{field}.step", f"0 to {_MAX_NUMBER}", value.step)
    if not math.isfinite(value.value):
        raise InvalidInputError(f"{field}.value", "a finite number", value.value)
    step = value.step if value.HasField("step") else None
    return LoggedValue(value.name, value.number, value.unix_seconds, step, value.value)


def _check_name(field: str, name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or not name.isprintable():
        raise InvalidInputError(field, f"1 to {MAX_NAME_BYTES} bytes of printable characters", name[:300])


def _points(points: Iterable[HistoryPoint]) -> list[monitor_pb2.MetricPoint]:
    return [message_of(monitor_pb2.MetricPoint, point) for point in points]
