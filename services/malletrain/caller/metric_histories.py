"""What jobs' scripts have logged of their trainings, as callers of Monitor get it."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from malletrain.caller.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.runtime.errors import UnavailableError
from malletrain.runtime.paging import all_pages
from malletrain.v1 import monitor_pb2

_NONE_TO_SHOW = frozenset((grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED))


def metric_histories(
    stubs: ServiceStubs, job_id: str, names: Sequence[str] = (), max_points: int = 0
) -> list[monitor_pb2.MetricHistory]:
    """The histories of a job's metrics, in the order of their names.

    Args:
        stubs: The services.
        job_id: The job.
        names: Only these metrics; none: all.
        max_points: Most points of each; 0: all that are kept.

    Raises:
        UnavailableError: Monitor is of an earlier version.
        grpc.RpcError: Monitor refuses, or does not answer.
    """
    request = monitor_pb2.GetMetricHistoryRequest(job_id=job_id, names=names, max_points=max_points)
    try:
        return _all_of(stubs, request)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise UnavailableError("Monitor is of an earlier version, which keeps no metrics") from None
        raise


def visible_histories(stubs: ServiceStubs, job_id: str, max_points: int) -> list[monitor_pb2.MetricHistory]:
    """As `metric_histories`, for those who show them beside other things: none where the caller may not see them.

    Raises:
        grpc.RpcError: Monitor does not answer.
    """
    request = monitor_pb2.GetMetricHistoryRequest(job_id=job_id, max_points=max_points)
    try:
        return _all_of(stubs, request)
    except grpc.RpcError as error:
        if error.code() in _NONE_TO_SHOW:
            return []
        raise


def _all_of(stubs: ServiceStubs, request: monitor_pb2.GetMetricHistoryRequest) -> list[monitor_pb2.MetricHistory]:
    pages = all_pages(stubs.monitor.GetMetricHistory, request, timeout=DEADLINE_SECONDS)
    return [history for page in pages for history in page.histories]
