"""Fleets: jobs that share nodes. Pure."""

from __future__ import annotations

MOST_GPUS_PER_NODE = 1024


def fleet_id(first_number: int) -> str:
    """Identifier of the fleet whose first member is the job with a number, e.g. "f000012"."""
    return f"f{first_number:06d}"


def first_member(fleet_id: str) -> str:
    """Identifier of the first member of a fleet, e.g. "j000012" of "f000012"."""
    return f"j{fleet_id[1:]}"
