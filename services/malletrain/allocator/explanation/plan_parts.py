"""The parts in which a plan was solved, as its message keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from malletrain.allocator.explanation.worth import PlannedPart
from malletrain.allocator.fleets.members import FleetDecision
from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem
from malletrain.allocator.problem.kinds import restrict_kinds
from malletrain.allocator.problem.planner import PlanInput, PlanProblem
from malletrain.allocator.problem.pools import PoolTerms
from malletrain.allocator.problem.scale_pins import with_pinned
from malletrain.allocator.wire.messages import (
    allocation_to_proto,
    decision_to_proto,
    metric_from_proto,
    metric_to_proto,
    problem_from_proto,
    put_problem,
)
from malletrain.v1 import allocator_pb2


def parts_to_proto(problem: PlanProblem, pool_of: Mapping[str, str]) -> list[allocator_pb2.PlanPart]:
    """The parts of a plan's problem as messages.

    Args:
        problem: The problem and its parts.
        pool_of: Pool of each node; empty where jobs may span pools.
    """
    several = problem.in_several_parts
    return [
        allocator_pb2.PlanPart(
            pool=pool_of.get(part.whole.nodes[0], "") if several and part.whole.nodes else "",
            nodes=part.whole.nodes if several else (),
            job_ids=[job.id for job in part.whole.jobs] if several else (),
            forward_seconds=part.whole.forward_seconds,
            owner_limits=part.whole.owner_limits,
            pinned_job_ids=list(part.pinned),
            objective_metric=metric_to_proto(part.whole.objective_metric),
            max_nodes=part.whole.max_nodes,
            max_parallel=terms.max_parallel,
            max_nodes_per_owner=terms.max_nodes_per_owner,
        )
        for part, terms in zip(problem.parts, problem.terms or [PoolTerms()] * len(problem.parts), strict=True)
    ]


def parts_of(plan: allocator_pb2.Plan) -> list[PlannedPart]:
    """The parts of a plan with what they were given; one of the whole problem where the plan does not keep them."""
    problem = problem_from_proto(plan.problem)
    nodes = {entry.job_id: tuple(entry.nodes) for entry in plan.allocation.assignments}
    if not plan.parts:
        return [_planned_part("", problem, nodes, ())]
    return [_planned_part(part.pool, _part(problem, part), nodes, part.pinned_job_ids) for part in plan.parts]


def _part(problem: AllocationProblem, part: allocator_pb2.PlanPart) -> AllocationProblem:
    own = replace(
        problem,
        forward_seconds=part.forward_seconds,
        owner_limits=dict(part.owner_limits),
        objective_metric=metric_from_proto(part.objective_metric, problem.objective_metric),
        max_nodes=part.max_nodes if part.HasField("max_nodes") else None,
    )
    if not part.nodes:
        return own
    inside, ids = frozenset(part.nodes), frozenset(part.job_ids)
    return replace(
        own,
        nodes=tuple(part.nodes),
        jobs=tuple(
            replace(job, current_nodes=tuple(node for node in job.current_nodes if node in inside))
            for job in problem.jobs
            if job.id in ids
        ),
        expected_stay_seconds={node: stay for node, stay in problem.expected_stay_seconds.items() if node in inside},
        kinds=restrict_kinds(problem.kinds, inside),
    )


def _planned_part(
    pool: str, problem: AllocationProblem, nodes: Mapping[str, tuple[str, ...]], pinned: Iterable[str]
) -> PlannedPart:
    ids = frozenset(pinned)
    own = {job.id: nodes.get(job.id, ()) for job in problem.jobs}
    return PlannedPart(pool, with_pinned(problem, {job_id: own[job_id] for job_id in own if job_id in ids}), own)


def describe(
    plan: allocator_pb2.Plan,
    plan_input: PlanInput,
    problem: PlanProblem,
    allocation: Allocation,
    decisions: Sequence[FleetDecision],
) -> None:
    """Put into a plan what it was made of: the problem, its parts, the solution, and how fleets are divided."""
    put_problem(plan.problem, problem.whole)
    pools = {node.name: node.pool for node in plan_input.nodes} if problem.in_several_parts else {}
    plan.parts.extend(parts_to_proto(problem, pools))
    plan.allocation.CopyFrom(allocation_to_proto(allocation))
    plan.fleets.extend(map(decision_to_proto, decisions))


def scales_of_members(decisions: Sequence[FleetDecision]) -> dict[str, dict[str, int]]:
    """The number of GPUs of each member that has some, by fleet."""
    return {one.fleet_id: {job_id: len(gpus) for job_id, gpus in one.members if gpus} for one in decisions}
