"""Conversions between protobuf messages and the dataclasses of the core."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.fleet.assignment import GpuAssignment
from malletrain.fleet.flotilla import Flotilla
from malletrain.fleet.lifecycle import FleetRun, FlotillaRun
from malletrain.fleet.problem import EnsembleModel, FleetPlanner, FleetProblem, RateTolerance
from malletrain.fleet.rates import ProfilePlan, RateTable
from malletrain.fleet.sharing import of_flotillas, of_others
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import beyond_peak_of, check_paces, pace_of
from malletrain.v1 import fleet_pb2


def problem_from_proto(message: fleet_pb2.FleetProblem) -> FleetProblem:
    """The problem of a message; its numbers are not checked.

    Raises:
        InvalidInputError: an enum has an unknown value, or there are two tolerances.
    """
    check_paces(message)
    return FleetProblem(
        models=tuple(EnsembleModel(model.id, tuple(model.rates), model.epochs) for model in message.models),
        gpus=message.gpus,
        gpus_per_node=message.gpus_per_node,
        samples_per_epoch=message.samples_per_epoch,
        tolerance=_tolerance(message),
        active_share=message.active_share if message.HasField("active_share") else 0.8,
        checkpoint_seconds=message.checkpoint_seconds,
        preprocess_rate=message.preprocess_rate,
        pace=pace_of(message.pace),
        beyond_peak=beyond_peak_of(message.beyond_peak),
        name=message.name,
    )


def _tolerance(message: fleet_pb2.FleetProblem) -> RateTolerance:
    if not message.HasField("rate_tolerance"):
        return RateTolerance(share=message.rate_tolerance_share)
    if message.rate_tolerance_share:
        raise InvalidInputError("rate_tolerance_share", "nothing beside rate_tolerance", message.rate_tolerance_share)
    return RateTolerance(message.rate_tolerance)


def plan_to_proto(
    problem: FleetProblem, table: RateTable, planner: FleetPlanner, flotilla: Flotilla, assignment: GpuAssignment
) -> fleet_pb2.FleetPlan:
    """Members that train first by a planner as a message."""
    rates = dict(zip(flotilla.members, flotilla.rates(table), strict=True))
    preprocessing = of_flotillas(problem) if planner is FleetPlanner.FLEET else of_others(problem)
    paces = preprocessing.paces(rates)
    return fleet_pb2.FleetPlan(
        members=_placements(problem, flotilla.members, assignment.gpus),
        orders_tried=assignment.orders_tried,
        score=assignment.score,
        pace=min(paces.values()),
    )


def run_to_proto(problem: FleetProblem, run: FleetRun) -> fleet_pb2.FleetRun:
    """A run as a message."""
    return fleet_pb2.FleetRun(
        seconds=run.seconds,
        flotillas=[_flotilla(problem, flotilla) for flotilla in run.flotillas],
        end_seconds={model.id: end for model, end in zip(problem.models, run.ends_s, strict=True)},
        waiting_gpu_seconds=run.waiting_gpu_seconds,
        unassigned_gpu_seconds=run.unassigned_gpu_seconds,
    )


def profile_to_proto(profile: ProfilePlan) -> fleet_pb2.FleetProfile:
    """The short trainings as a message."""
    return fleet_pb2.FleetProfile(
        ma=profile.span,
        mb=profile.anchor,
        mt=profile.max_gpus,
        trainings=profile.trainings,
        gpu_trainings=profile.gpu_trainings,
    )


def _flotilla(problem: FleetProblem, run: FlotillaRun) -> fleet_pb2.Flotilla:
    return fleet_pb2.Flotilla(
        members=_placements(problem, run.members, run.gpus),
        score=run.score,
        start_seconds=run.start_s,
        end_seconds=run.end_s,
        completed=[problem.models[member].id for member in run.completed],
    )


def _placements(
    problem: FleetProblem, members: Sequence[int], gpus: Sequence[Sequence[int]]
) -> list[fleet_pb2.MemberPlacement]:
    return [
        fleet_pb2.MemberPlacement(model_id=problem.models[member].id, gpu_indices=own)
        for member, own in zip(members, gpus, strict=True)
    ]
