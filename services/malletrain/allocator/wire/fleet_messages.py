"""Conversions between protobuf messages and what a plan knows of fleets."""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.allocator.fleets.members import FleetDecision, FleetMember, LateRate
from malletrain.fleet.problem import FleetPlanner
from malletrain.runtime.fleet_messages import planner_of, planner_value, spec_from_proto
from malletrain.v1 import allocator_pb2, monitor_pb2, resources_pb2

_PROFILED = (resources_pb2.PROFILE_MODE_AUTO, resources_pb2.PROFILE_MODE_ALWAYS)


def member_from_proto(job: resources_pb2.Job) -> FleetMember | None:
    """What a job is to its fleet; None: it is in none."""
    if not job.fleet_id:
        return None
    spec = job.spec
    return FleetMember(
        job.fleet_id,
        spec.name,
        spec_from_proto(spec.fleet),
        job.samples,
        spec.target_samples,
        spec.profile in _PROFILED,
    )


def feed_rates(progress: Iterable[monitor_pb2.Progress]) -> dict[str, float]:
    """Samples per second that feeds can prepare on a node, by job, where that is known."""
    return {
        entry.job_id: entry.feed.processes / entry.feed.cpu_seconds
        for entry in progress
        if entry.feed.cpu_seconds > 0 and entry.feed.processes > 0
    }


def decision_to_proto(decision: FleetDecision) -> allocator_pb2.FleetDecision:
    """A decision as a message."""
    return allocator_pb2.FleetDecision(
        fleet_id=decision.fleet_id,
        planner=planner_value(decision.divider),
        reason=decision.reason,
        rate=decision.rate,
        pace=decision.pace,
        members=[allocator_pb2.Assignment(job_id=job_id, nodes=gpus) for job_id, gpus in decision.members],
        flotilla=[allocator_pb2.FlotillaShare(job_id=job_id, gpus=gpus) for job_id, gpus in decision.flotilla],
        gpus=decision.gpus,
        compared_gpus=decision.compared_gpus,
        late_rates=[
            allocator_pb2.LateRate(job_id=job_id, gpus=late.gpus, seconds=late.seconds)
            for job_id, late in decision.late_rates
        ],
        planner_reason=decision.planner_reason,
        preprocess_rate=decision.preprocess_rate,
    )


def decision_from_proto(message: allocator_pb2.FleetDecision) -> FleetDecision:
    """The decision of a message, of a plan that was stored."""
    planner = planner_of(message.planner)
    return FleetDecision(
        fleet_id=message.fleet_id,
        divider=FleetPlanner.LIST if planner is FleetPlanner.AUTO else planner,
        reason=message.reason,
        rate=message.rate,
        pace=message.pace,
        members=tuple((entry.job_id, tuple(entry.nodes)) for entry in message.members),
        flotilla=tuple((entry.job_id, entry.gpus) for entry in message.flotilla),
        gpus=message.gpus,
        compared_gpus=message.compared_gpus,
        late_rates=tuple((entry.job_id, LateRate(entry.gpus, entry.seconds)) for entry in message.late_rates),
        planner_reason=message.planner_reason or message.reason,
        preprocess_rate=message.preprocess_rate,
    )
