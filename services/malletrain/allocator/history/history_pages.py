"""Pages of what the Allocator has stored of the past: the idle set, what plans believed of jobs, and U by minute."""

from __future__ import annotations

from math import inf, isfinite

from malletrain.allocator.history.idle_history import IdleRow
from malletrain.allocator.history.idle_store import IdleStore
from malletrain.allocator.history.plan_store import PlanStore
from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.allocator.utilization.store import UtilizationStore
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import allocator_pb2

_MAX_IDLE_PAGE = 1000
MAX_IDLE_CHARACTERS = 2_000_000
_MAX_PLAN_PAGE = 200
_MAX_MINUTES_PAGE = 10_000
_MAX_TOKEN_LENGTH = 18


def idle_page(store: IdleStore, request: allocator_pb2.ListIdleChangesRequest) -> allocator_pb2.ListIdleChangesResponse:
    """A page of the history of the idle set.

    Raises:
        InvalidInputError: no page is asked for like this.
    """
    size, after = _size(request.page_size, _MAX_IDLE_PAGE), _position(request.page_token)
    rows, more = store.page(after, size, MAX_IDLE_CHARACTERS)
    return allocator_pb2.ListIdleChangesResponse(
        changes=[_change(sequence, row) for sequence, row in rows], next_page_token=str(rows[-1][0]) if more else ""
    )


def believed_page(
    store: PlanStore, request: allocator_pb2.ListBelievedJobsRequest
) -> allocator_pb2.ListBelievedJobsResponse:
    """What some plans believed of their jobs.

    Raises:
        InvalidInputError: no page is asked for like this.
    """
    size, before = _size(request.page_size, _MAX_PLAN_PAGE), _position(request.page_token)
    believed: dict[str, allocator_pb2.BelievedJob] = {}
    pools: list[str] = []
    plans = oldest = 0
    for plan in store.newest_first(before, size):
        pools = pools if plans else [part.pool for part in plan.parts]
        plans, oldest = plans + 1, plan.generation
        for job in plan.problem.jobs:
            if job.id not in believed:
                believed[job.id] = _believed_job(job)
    token = str(oldest) if plans == size and oldest > 1 else ""
    return allocator_pb2.ListBelievedJobsResponse(jobs=believed.values(), pools=pools, next_page_token=token)


def utilization_page(
    store: UtilizationStore, request: allocator_pb2.ListUtilizationRequest
) -> allocator_pb2.ListUtilizationResponse:
    """A page of U by minute.

    Raises:
        InvalidInputError: no page is asked for like this.
    """
    if not isfinite(request.since_unix_seconds):
        raise InvalidInputError("since_unix_seconds", "a finite number", request.since_unix_seconds)
    size, after = _size(request.page_size, _MAX_MINUTES_PAGE), _position(request.page_token)
    first = max(request.since_unix_seconds, after + 1.0 if request.page_token else -inf)
    minutes = store.since(first, size + 1)
    return allocator_pb2.ListUtilizationResponse(
        minutes=map(minute_to_proto, minutes[:size]),
        next_page_token=str(int(minutes[size - 1].start)) if len(minutes) > size else "",
    )


def minute_to_proto(minute: MinuteUse) -> allocator_pb2.UtilizationMinute:
    """A minute as a message."""
    return allocator_pb2.UtilizationMinute(
        unix_seconds=int(minute.start),
        nodes=minute.nodes,
        trained_samples=minute.trained,
        free_samples=minute.free,
        static_samples=minute.static,
    )


def _change(sequence: int, row: IdleRow) -> allocator_pb2.IdleChange:
    kind = allocator_pb2.IdleChangeKind.Value(f"IDLE_CHANGE_KIND_{row.kind.value}")
    return allocator_pb2.IdleChange(
        sequence=sequence, unix_seconds=row.unix_seconds, kind=kind, joined=row.joined, left=row.left
    )


def _believed_job(job: allocator_pb2.JobDemand) -> allocator_pb2.BelievedJob:
    return allocator_pb2.BelievedJob(
        job_id=job.id,
        curve=job.curve,
        scale_up_seconds=job.scale_up_seconds,
        scale_down_seconds=job.scale_down_seconds,
    )


def _size(size: int, max_size: int) -> int:
    if not 0 <= size <= max_size:
        raise InvalidInputError("page_size", f"0 to {max_size}", size)
    return size or max_size


def _position(token: str) -> int:
    if not token:
        return 0
    if not token.isascii() or not token.isdigit() or len(token) > _MAX_TOKEN_LENGTH:
        raise InvalidInputError("page_token", "the next_page_token of the page before", token)
    return int(token)
