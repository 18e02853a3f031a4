"""What a job has logged of a metric so far, for pruners: the one place where intermediate values are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from malletrain.caller.searching.search_jobs import ServiceCalls
from malletrain.runtime.errors import NotFoundError, UnavailableError
from malletrain.v1 import monitor_pb2

IS_KEPT = hasattr(monitor_pb2, "GetMetricHistoryRequest")
"""Whether Monitor keeps what scripts log. Where it does not, metrics are known at the end of a job only."""


def intermediate_values(calls: ServiceCalls, job_id: str, metric: str) -> Mapping[int, float]:
    """Values of a metric by step, as far as they have been logged; none while Monitor does not answer.

    Args:
        calls: The services.
        job_id: The job.
        metric: Name of the metric.
    """
    messages: Any = monitor_pb2
    monitor: Any = calls.stubs.monitor
    request = messages.GetMetricHistoryRequest(job_id=job_id, names=[metric])
    try:
        answer = calls.call(monitor.GetMetricHistory, request)
    except (NotFoundError, UnavailableError):
        return {}
    return {point.step: point.value for history in answer.histories for point in history.points}
