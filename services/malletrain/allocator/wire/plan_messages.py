"""What a plan says of itself, in its message and in the log."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.allocator.explanation.plan_parts import parts_to_proto
from malletrain.allocator.fleets.members import FleetDecision
from malletrain.allocator.problem.allocation_problem import Allocation
from malletrain.allocator.problem.planner import PlanInput, PlanProblem
from malletrain.allocator.wire import messages
from malletrain.allocator.wire.fleet_messages import decision_to_proto
from malletrain.v1 import allocator_pb2


def describe(
    plan: allocator_pb2.Plan,
    plan_input: PlanInput,
    problem: PlanProblem,
    allocation: Allocation,
    decisions: Sequence[FleetDecision],
) -> None:
    """Put into a plan what it was made of: the problem, its parts, the solution, and how fleets are divided."""
    messages.put_problem(plan.problem, problem.whole)
    plan.parts.extend(parts_to_proto(problem, {node.name: node.pool for node in plan_input.nodes}))
    plan.allocation.CopyFrom(messages.allocation_to_proto(allocation))
    plan.fleets.extend(map(decision_to_proto, decisions))


def scales_of_members(decisions: Sequence[FleetDecision]) -> dict[str, dict[str, int]]:
    """The number of GPUs of each member that has some, by fleet."""
    return {one.fleet_id: {job_id: len(gpus) for job_id, gpus in one.members if gpus} for one in decisions}
