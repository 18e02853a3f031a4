"""Fleets as the command knows them: jobs that share a fleet's identifier."""

from __future__ import annotations

import re

from malletrain.cli.jobs.jobs import all_jobs
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.errors import NotFoundError, quoted
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.v1 import allocator_pb2, fleet_pb2, resources_pb2

_FLEET = re.compile(r"f\d{6,}")


def is_fleet(name: str) -> bool:
    """Whether a name is the identifier of a fleet."""
    return bool(_FLEET.fullmatch(name))


def members_of(stubs: ServiceStubs, fleet_id: str) -> list[resources_pb2.Job]:
    """The jobs of a fleet, in the order of their submission.

    Raises:
        NotFoundError: there is no such fleet.
    """
    found = [job for job in all_jobs(stubs) if job.fleet_id == fleet_id]
    if not found:
        raise NotFoundError(f"fleet {quoted(fleet_id)} is not known")
    return found


def unfinished_members(stubs: ServiceStubs, fleet_id: str) -> list[str]:
    """The jobs of a fleet that have not ended.

    Raises:
        NotFoundError: there is no such fleet.
    """
    return [job.id for job in members_of(stubs, fleet_id) if job.state not in FINAL_JOB_STATES]


def decision_in_words(decision: allocator_pb2.FleetDecision) -> str:
    """How a plan divides the GPUs of a fleet, and why."""
    planner = fleet_pb2.FleetPlanner.Name(decision.planner).removeprefix("FLEET_PLANNER_").lower()
    training = sum(bool(entry.nodes) for entry in decision.members)
    used = sum(len(entry.nodes) for entry in decision.members)
    return (
        f"{training} members on {used} of {decision.gpus} GPUs by {planner}: expected {decision.rate:,.1f} samples/s "
        f"together, the slowest {decision.pace:,.1f}\nbecause {decision.reason}"
    )
