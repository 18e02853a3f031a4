"""Between the contract's messages and the core's dataclasses."""

from __future__ import annotations

from malletrain.allocator.problem import (
    Allocation,
    AllocationProblem,
    CostModel,
    Formulation,
    JobDemand,
    ObjectiveMetric,
    ScalingPoint,
    Stall,
)
from malletrain.allocator.validation import validate
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import allocator_pb2, resources_pb2

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
}


def problem_from_proto(message: allocator_pb2.AllocationProblem) -> AllocationProblem:
    """The problem of a message.

    Raises:
        InvalidInputError: it can't be used; names the field.
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
        stalls=tuple(Stall(stall.from_nodes, stall.to_nodes, stall.seconds) for stall in job.stalls),
    )


def problem_to_proto(problem: AllocationProblem) -> allocator_pb2.AllocationProblem:
    """The message of a problem."""
    return allocator_pb2.AllocationProblem(
        nodes=problem.nodes,
        forward_seconds=problem.forward_seconds,
        cost_model={CostModel.PAPER: allocator_pb2.COST_MODEL_PAPER, CostModel.STALL: allocator_pb2.COST_MODEL_STALL}[
            problem.cost_model
        ],
        objective_metric={
            ObjectiveMetric.THROUGHPUT: allocator_pb2.OBJECTIVE_METRIC_THROUGHPUT,
            ObjectiveMetric.SCALING_EFFICIENCY: allocator_pb2.OBJECTIVE_METRIC_SCALING_EFFICIENCY,
        }[problem.objective_metric],
        jobs=[
            allocator_pb2.JobDemand(
                id=job.id,
                min_nodes=job.min_nodes,
                max_nodes=job.max_nodes,
                scale_up_seconds=job.scale_up_seconds,
                scale_down_seconds=job.scale_down_seconds,
                weight=job.weight,
                curve=[resources_pb2.ScalingPoint(nodes=point.nodes, rate=point.rate) for point in job.curve],
                current_nodes=job.current_nodes,
                permitted_nodes=job.permitted_nodes,
                stalls=[
                    resources_pb2.RescaleStall(from_nodes=s.from_nodes, to_nodes=s.to_nodes, seconds=s.seconds)
                    for s in job.stalls
                ],
            )
            for job in problem.jobs
        ],
        expected_stay_seconds=problem.expected_stay_seconds,
    )


def allocation_to_proto(allocation: Allocation) -> allocator_pb2.Allocation:
    """The message of an allocation."""
    return allocator_pb2.Allocation(
        objective=allocation.objective,
        status=allocation.status,
        solver=allocation.solver,
        solve_seconds=allocation.solve_seconds,
        assignments=[
            allocator_pb2.Assignment(job_id=entry.job_id, nodes=entry.nodes) for entry in allocation.assignments
        ],
        fallback_reason=allocation.fallback_reason,
    )


def formulation_from_proto(value: allocator_pb2.Formulation.ValueType) -> Formulation:
    """The formulation of a message.

    Raises:
        InvalidInputError: it is not known.
    """
    if value not in _FORMULATIONS:
        raise InvalidInputError("formulation", "a known formulation", value)
    return _FORMULATIONS[value]
