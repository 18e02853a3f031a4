"""Fleets and arrays as the command knows them: jobs that share an identifier."""

from __future__ import annotations

import re

from malletrain.cli.jobs.jobs import all_jobs
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.errors import NotFoundError, quoted
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.v1 import allocator_pb2, fleet_pb2, resources_pb2

_FLEET = re.compile(r"f\d{6,}")
_ARRAY = re.compile(r"a\d{6,}")


def is_fleet(name: str) -> bool:
    """Whether a name is the identifier of a fleet."""
    return bool(_FLEET.fullmatch(name))


def is_group(name: str) -> bool:
    """Whether a name is the identifier of an array or a fleet."""
    return is_fleet(name) or bool(_ARRAY.fullmatch(name))


def members_of(stubs: ServiceStubs, fleet_id: str) -> list[resources_pb2.Job]:
    """The jobs of a fleet or an array, in the order of their submission.

    Raises:
        NotFoundError: there is none of this identifier.
    """
    found = [job for job in all_jobs(stubs) if fleet_id in (job.fleet_id, job.array_id)]
    if not found:
        raise NotFoundError(f"{'fleet' if is_fleet(fleet_id) else 'array'} {quoted(fleet_id)} is not known")
    return found


def unfinished_members(stubs: ServiceStubs, fleet_id: str) -> list[str]:
    """The jobs of a fleet or an array that have not ended.

    Raises:
        NotFoundError: there is none of this identifier.
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
