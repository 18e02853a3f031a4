"""Conversions between protobuf messages and the dataclasses of the core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate

from malletrain.allocator.fleets.members import FleetDecision, FleetMember, LateRate
from malletrain.allocator.fleets.profiling import COUNTED_BATCHES
from malletrain.allocator.machine.cluster_cache import CachedJob, CachedProfile, offered_scales
from malletrain.allocator.machine.node_stays import NodeTimes, StayReport
from malletrain.allocator.problem.allocation_problem import (
    Allocation,
    AllocationProblem,
    Assignment,
    CostModel,
    Formulation,
    JobDemand,
    NeedCount,
    NodeKind,
    ObjectiveMetric,
)
from malletrain.allocator.problem.planner import LINEAR_PLAN, JobCurve, PlannableJob, PlannableNode, PlannedValue
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.allocator.problem.training_environment import training_environment
from malletrain.allocator.problem.validation import validate
from malletrain.common.memory_by_job import MemoryByJob
from malletrain.fleet.problem import FleetPlanner
from malletrain.model.job_value import LINEAR_VALUE
from malletrain.model.scaling import RescaleStall, ScalingPoint
from malletrain.model.survival_curve import SurvivalCurve
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import planner_of, planner_value, spec_from_proto
from malletrain.runtime.job_value_messages import curve_from_proto, curve_to_proto, noise_from_proto, value_from_proto
from malletrain.runtime.messages import job_state_of, message_of, terms_of, unix_seconds
from malletrain.runtime.node_needs_messages import needs_from_proto
from malletrain.runtime.topology_messages import (
    groups_to_proto,
    level_from_proto,
    paths_from_proto,
    preference_from_proto,
    preference_to_proto,
    replica_from_proto,
)
from malletrain.v1 import allocator_pb2, monitor_pb2, profiler_pb2, resources_pb2, scavenger_pb2

_COST_MODELS = {
    allocator_pb2.COST_MODEL_UNSPECIFIED: CostModel.STALL,
    allocator_pb2.COST_MODEL_PAPER: CostModel.PAPER,
    allocator_pb2.COST_MODEL_STALL: CostModel.STALL,
}
_METRICS = {
    allocator_pb2.OBJECTIVE_METRIC_UNSPECIFIED: ObjectiveMetric.THROUGHPUT,
    allocator_pb2.OBJECTIVE_METRIC_THROUGHPUT: ObjectiveMetric.THROUGHPUT,
    allocator_pb2.OBJECTIVE_METRIC_SCALING_EFFICIENCY: ObjectiveMetric.SCALING_EFFICIENCY,
}
_FORMULATIONS = {
    allocator_pb2.FORMULATION_UNSPECIFIED: Formulation.AUTO,
    allocator_pb2.FORMULATION_AUTO: Formulation.AUTO,
    allocator_pb2.FORMULATION_DP: Formulation.DP,
    allocator_pb2.FORMULATION_COUNTS: Formulation.COUNTS,
    allocator_pb2.FORMULATION_NODES: Formulation.NODES,
    allocator_pb2.FORMULATION_MILP: Formulation.MILP,
}


def problem_from_proto(message: allocator_pb2.AllocationProblem) -> AllocationProblem:
    """The problem of a message.

    Raises:
        InvalidInputError: the problem is not valid; the error names the field.
    """
    if message.cost_model not in _COST_MODELS:
        raise InvalidInputError("cost_model", "a known cost model", message.cost_model)
    if message.objective_metric not in _METRICS:
        raise InvalidInputError("objective_metric", "a known metric", message.objective_metric)
    problem = AllocationProblem(
        nodes=tuple(message.nodes),
        forward_seconds=message.forward_seconds,
        jobs=tuple(_demand(job) for job in message.jobs),
        cost_model=_COST_MODELS[message.cost_model],
        objective_metric=_METRICS[message.objective_metric],
        expected_stay_seconds=dict(message.expected_stay_seconds),
        owner_limits=dict(message.owner_limits),
        kinds=tuple(NodeKind(tuple(kind.nodes)) for kind in message.kinds),
        paths=paths_from_proto(message.groups, frozenset(message.nodes)),
        max_nodes=message.max_nodes if message.HasField("max_nodes") else None,
    )
    validate(problem)
    return problem


def _demand(job: allocator_pb2.JobDemand) -> JobDemand:
    return JobDemand(
        id=job.id,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        curve=tuple(ScalingPoint(point.nodes, point.rate) for point in job.curve),
        scale_up_seconds=job.scale_up_seconds,
        scale_down_seconds=job.scale_down_seconds,
        weight=job.weight if job.HasField("weight") else 1.0,
        current_nodes=tuple(job.current_nodes),
        permitted_nodes=tuple(job.permitted_nodes),
        stalls=_stalls(job.stalls),
        owner=job.owner,
        share_weight=job.share_weight or 1.0,
        boot_seconds=job.boot_seconds,
        unsuitable_kinds=tuple(job.unsuitable_kinds),
        needs=tuple(NeedCount(need.text, need.nodes) for need in job.needs),
        topology=preference_from_proto(job.topology, f"jobs[{job.id}].topology"),
        topology_level=level_from_proto(job, f"jobs[{job.id}]"),
        nodes_per_replica=replica_from_proto(job, f"jobs[{job.id}]"),
        value=curve_from_proto(job),
        wanted_nodes=tuple(job.wanted_nodes),
    )


def problem_to_proto(problem: AllocationProblem) -> allocator_pb2.AllocationProblem:
    """A problem as a message."""
    message = allocator_pb2.AllocationProblem()
    put_problem(message, problem)
    return message


def put_problem(message: allocator_pb2.AllocationProblem, problem: AllocationProblem) -> None:
    """Put a problem into an empty message, which may be part of another: ten thousand nodes are copied once only."""
    message.nodes.extend(problem.nodes)
    message.forward_seconds = problem.forward_seconds
    message.cost_model = (
        allocator_pb2.COST_MODEL_PAPER if problem.cost_model is CostModel.PAPER else allocator_pb2.COST_MODEL_STALL
    )
    message.objective_metric = metric_to_proto(problem.objective_metric)
    message.jobs.extend([_remembered.value(job.id, (job,), partial(_demand_to_proto, job)) for job in problem.jobs])
    message.expected_stay_seconds.update(problem.expected_stay_seconds)
    message.owner_limits.update(problem.owner_limits)
    message.kinds.extend(allocator_pb2.NodeKind(nodes=kind.nodes) for kind in problem.kinds)
    message.groups.extend(groups_to_proto(problem.paths, problem.nodes))
    if problem.max_nodes is not None:
        message.max_nodes = problem.max_nodes


def metric_to_proto(metric: ObjectiveMetric) -> allocator_pb2.ObjectiveMetric.ValueType:
    """The protobuf value of a metric."""
    if metric is ObjectiveMetric.SCALING_EFFICIENCY:
        return allocator_pb2.OBJECTIVE_METRIC_SCALING_EFFICIENCY
    return allocator_pb2.OBJECTIVE_METRIC_THROUGHPUT


def metric_from_proto(value: allocator_pb2.ObjectiveMetric.ValueType, unspecified: ObjectiveMetric) -> ObjectiveMetric:
    """The metric of a message; `unspecified` where it names none that this version knows."""
    return _METRICS.get(value, unspecified) if value else unspecified


_remembered: MemoryByJob[allocator_pb2.JobDemand] = MemoryByJob()
"""By the job as a whole, which is mostly the one of the problem before."""
_remembered_lists: MemoryByJob[allocator_pb2.JobDemand] = MemoryByJob()


def _demand_to_proto(job: JobDemand) -> allocator_pb2.JobDemand:
    """What hardly ever changes of a job is copied: of a thousand jobs with their curves it takes 20 ms to make."""
    message = allocator_pb2.JobDemand()
    message.CopyFrom(
        _remembered_lists.value(job.id, (job.curve, job.stalls, job.permitted_nodes), lambda: _lists_to_proto(job))
    )
    message.id, message.owner = job.id, job.owner
    message.min_nodes, message.max_nodes = job.min_nodes, job.max_nodes
    message.scale_up_seconds, message.scale_down_seconds = job.scale_up_seconds, job.scale_down_seconds
    message.weight = job.weight
    message.share_weight = 0.0 if job.share_weight == 1 else job.share_weight
    message.boot_seconds = job.boot_seconds
    message.current_nodes.extend(job.current_nodes)
    message.wanted_nodes.extend(job.wanted_nodes)
    message.topology, message.topology_level = preference_to_proto(job.topology), job.topology_level
    message.nodes_per_replica = job.nodes_per_replica if job.nodes_per_replica > 1 else 0
    if (value := curve_to_proto(job.value)) is not None:
        message.value.CopyFrom(value)
    if job.needs:
        message.unsuitable_kinds.extend(job.unsuitable_kinds)
        message.needs.extend(resources_pb2.NeedCount(text=need.text, nodes=need.nodes) for need in job.needs)
    return message


def _lists_to_proto(job: JobDemand) -> allocator_pb2.JobDemand:
    return allocator_pb2.JobDemand(
        curve=[message_of(resources_pb2.ScalingPoint, point) for point in job.curve],
        permitted_nodes=job.permitted_nodes,
        stalls=[message_of(resources_pb2.RescaleStall, stall) for stall in job.stalls],
    )


def allocation_to_proto(allocation: Allocation) -> allocator_pb2.Allocation:
    """An allocation as a message."""
    return message_of(
        allocator_pb2.Allocation, allocation, assignments=map(assignment_to_proto, allocation.assignments)
    )


_remembered_parts: MemoryByJob[allocator_pb2.Assignment] = MemoryByJob()


def assignment_to_proto(assignment: Assignment) -> allocator_pb2.Assignment:
    """What a job gets, as a message; it must not be changed: where nothing differs, it is that of the plan before."""

    def make() -> allocator_pb2.Assignment:
        return allocator_pb2.Assignment(job_id=assignment.job_id, nodes=assignment.nodes)

    return _remembered_parts.value(assignment.job_id, assignment.nodes, make)


def node_from_proto(node: resources_pb2.Node) -> PlannableNode:
    """A node as a plan sees it."""
    return PlannableNode(
        node.name,
        node.expected_stay_seconds,
        node.pool,
        node.gpus,
        node.gpu_type,
        tuple(node.features),
        node.cores,
        node.memory_mib,
        node.gpu_memory_mib,
        tuple(node.topology),
    )


def stays_from_proto(message: scavenger_pb2.GetStaysResponse) -> StayReport:
    """What the Scavenger tells of expected stays."""
    steps = message.curve
    return StayReport(
        token=message.token,
        time=message.unix_seconds,
        horizon_seconds=message.horizon_seconds,
        same_curve=message.same_curve,
        curve=SurvivalCurve.of_steps(steps.seconds, steps.survival, steps.tail_rate)
        if message.HasField("curve")
        else None,
        complete=message.complete,
        nodes={
            node.name: NodeTimes(
                node.idle_since_unix_seconds,
                node.idle_until_unix_seconds if node.HasField("idle_until_unix_seconds") else None,
                node.pool,
                node.gpus,
            )
            for node in message.nodes
        },
        slow=frozenset(message.slow_nodes),
    )


def job_from_proto(job: resources_pb2.Job) -> CachedJob:
    """A job as JobManager reports it. A member of a fleet is promised what the newest plan wants for it."""
    member, terms = member_from_proto(job), terms_of(job.spec)
    left_out = () if member is not None else tuple(job.left_out_scales)
    promised = job.wanted_nodes if member is not None and job.wanted_nodes else job.commanded_nodes
    return CachedJob(
        plannable=PlannableJob(
            **terms.terms(permitted_nodes=offered_scales(terms, left_out)),
            id=job.id,
            current_nodes=tuple(promised),
            owner=job.owner,
            share_weight=job.share_weight or 1.0,  # 0: absent, since JobManager computes none (JobSpec.most_weight)
            member=member,
            needs=needs_from_proto(job.spec.needs),
            value=_value(job),
            wanted_nodes=tuple(job.wanted_nodes),
        ),
        state=job_state_of(job.state),
        admitted=job.admitted,
        not_before=unix_seconds(job.not_before) if job.HasField("not_before") else None,
        plan_generation=job.plan_generation,
        confirmed_nodes=frozenset(job.confirmed_nodes),
        environment=_environment(job.spec),
        stopping_since=unix_seconds(job.update_time) if job.state == resources_pb2.JOB_STATE_STOPPING else None,
        keeps_scale=job.saves_fail,
    )


def _value(job: resources_pb2.Job) -> PlannedValue:
    value = value_from_proto(job.spec)
    submitted = unix_seconds(job.create_time)
    return (
        PlannedValue(value, submitted, job.spec.target_samples, job.samples) if value != LINEAR_VALUE else LINEAR_PLAN
    )


def _environment(spec: resources_pb2.JobSpec) -> str:
    backend = resources_pb2.LauncherBackend.Name(spec.backend).removeprefix("LAUNCHER_BACKEND_").lower()
    variables = {"PATH": spec.environment["PATH"]} if "PATH" in spec.environment else {}
    return training_environment(
        spec.command,
        spec.working_directory,
        variables,
        "" if backend == "unspecified" else backend,
        cold=spec.cold_start,
    )


def profile_from_proto(profile: profiler_pb2.Profile, caution: float) -> CachedProfile:
    """A profile as the Profiler reports it.

    Args:
        profile: The message.
        caution: Fraction of a rate's relative error that is subtracted from it: 0 believes it, 1 takes the lower bound.
    """
    pin = profile.hold
    return CachedProfile(
        job_id=profile.job_id,
        curve=_curve(profile, caution) if profile.points else None,
        pin=ScalePin(pin.nodes, pin.grow, pin.until_unix_seconds) if profile.HasField("hold") else None,
    )


def _curve(profile: profiler_pb2.Profile, caution: float) -> JobCurve:
    lowered = (point.rate * max(0.0, 1.0 - caution * point.relative_error) for point in profile.points)
    # Curves never fall, lowered ones included.
    rates = accumulate(lowered, max)
    return JobCurve(
        points=tuple(ScalingPoint(point.nodes, rate) for point, rate in zip(profile.points, rates, strict=True)),
        scale_up_seconds=profile.scale_up_seconds,
        scale_down_seconds=profile.scale_down_seconds,
        stalls=_stalls(profile.stalls),
        known=any(point.source != profiler_pb2.CURVE_SOURCE_PRIOR for point in profile.points),
        sure=tuple(point.nodes for point in profile.points if _is_sure(point)),
        noise=noise_from_proto(profile.noise) if profile.HasField("noise") else None,
    )


def _is_sure(point: profiler_pb2.ProfilePoint) -> bool:
    if point.source == profiler_pb2.CURVE_SOURCE_MEASURED:
        return point.steps >= COUNTED_BATCHES
    return point.source in (profiler_pb2.CURVE_SOURCE_DECLARED, profiler_pb2.CURVE_SOURCE_FAMILY)


def _stalls(stalls: Sequence[resources_pb2.RescaleStall]) -> tuple[RescaleStall, ...]:
    return tuple(RescaleStall(stall.from_nodes, stall.to_nodes, stall.seconds) for stall in stalls)


def formulation_from_proto(value: allocator_pb2.Formulation.ValueType) -> Formulation:
    """The formulation of a message.

    Raises:
        InvalidInputError: it is not known.
    """
    if value not in _FORMULATIONS:
        raise InvalidInputError("formulation", "a known formulation", value)
    return _FORMULATIONS[value]


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
