"""From messages of the services to facts. What not every viewer may see is left out here."""

from __future__ import annotations

from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.observer.facts import (
    HeldFact,
    IdleFact,
    NodeFact,
    NodeTrouble,
    PlanFact,
    ReleaseFact,
    RowOfPlan,
    SourceFact,
    StallFact,
)
from malletrain.observer.job_intake import enum_name
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import (
    allocator_pb2,
    job_manager_pb2,
    monitor_pb2,
    resources_pb2,
    scavenger_pb2,
)


def node_fact(node: resources_pb2.Node) -> NodeFact:
    """A node of the idle set."""
    return NodeFact(
        node.name,
        unix_seconds(node.idle_since),
        node.expected_stay_seconds,
        unix_seconds(node.idle_until) if node.HasField("idle_until") else None,
        node.pool,
        f"{node.gpus} {node.gpu_type}".strip() if node.gpus else "",
        bool(node.agent),
        node.gpus,
    )


def stall_facts(record: monitor_pb2.ScalingRecord) -> list[StallFact]:
    """The measured rescales of a job, oldest first."""
    return [
        StallFact(record.job_id, entry.from_nodes, entry.to_nodes, entry.stall_seconds, entry.unix_seconds)
        for entry in record.rescales
    ]


def plan_fact(plan: allocator_pb2.Plan) -> PlanFact:
    """A plan."""
    before = {demand.id: len(demand.current_nodes) for demand in plan.problem.jobs}
    rows = tuple(
        RowOfPlan(entry.job_id, before.get(entry.job_id, 0), len(entry.nodes)) for entry in plan.allocation.assignments
    )
    return PlanFact(
        plan.generation,
        unix_seconds(plan.create_time),
        plan.trigger,
        len(plan.problem.nodes),
        plan.problem.forward_seconds,
        plan.allocation.objective,
        plan.allocation.status,
        plan.allocation.solver,
        plan.allocation.solve_seconds,
        plan.applied,
        plan.refusal,
        tuple(plan.omissions),
        rows,
        plan.problem.SerializeToString(),
    )


def held_fact(event: job_manager_pb2.JobEvent) -> HeldFact:
    """Which nodes a job had after a row of the journal."""
    return HeldFact(
        event.unix_seconds,
        event.job_id,
        frozenset(event.nodes),
        enum_name(resources_pb2.JobState.Name, event.to_state, "JOB_STATE_").upper(),
        event.reason_code == resources_pb2.JOB_REASON_CONFIRMED,
    )


def idle_fact(change: allocator_pb2.IdleChange) -> IdleFact:
    """A change of the idle set, as the Allocator has recorded it."""
    whole = change.kind != allocator_pb2.IDLE_CHANGE_KIND_CHANGE
    return IdleFact(change.unix_seconds, frozenset(change.joined), frozenset(change.left), whole)


def minute_use(minute: allocator_pb2.UtilizationMinute) -> MinuteUse:
    """U of a minute, as the Allocator has recorded it."""
    return MinuteUse(
        float(minute.unix_seconds), minute.nodes, minute.trained_samples, minute.free_samples, minute.static_samples
    )


def release_fact(event: job_manager_pb2.JobEvent) -> ReleaseFact | None:
    """The release that a row of the journal confirms, if it does."""
    if event.reason_code != resources_pb2.JOB_REASON_NODE_RELEASED:
        return None
    return ReleaseFact(event.unix_seconds, event.job_id, event.release_seconds)


def source_fact(status: scavenger_pb2.GetStatusResponse) -> SourceFact:
    """Whether the source of idle nodes works, by what the Scavenger answers."""
    troubles = [
        NodeTrouble(
            node.name,
            "quarantined",
            f"until {node.until.ToDatetime():%H:%M:%S} UTC, {node.failures} failures"
            f"{f', by {_one_line(node.by)}' if node.by else ''}: {_one_line(node.reason)}",
        )
        for node in status.quarantined
    ]
    troubles += [
        NodeTrouble(
            node.name,
            "drained",
            f"since {node.since.ToDatetime():%H:%M:%S} UTC by {node.user}: {_one_line(node.reason) or 'no reason'}",
        )
        for node in status.drained
    ]
    return SourceFact(
        status.source, status.stale, tuple(_placeholders(entry) for entry in status.placeholders), tuple(troubles)
    )


def _placeholders(entry: scavenger_pb2.PlaceholderStatus) -> str:
    failing = f", {entry.failures_in_a_row} failures in a row" if entry.failures_in_a_row else ""
    paused = ", paused" if entry.paused else ""
    return (
        f"{entry.source}: {entry.running} nodes held, {entry.pending} placeholders wait, {entry.ending} are ending"
        f"{failing}{paused}"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
