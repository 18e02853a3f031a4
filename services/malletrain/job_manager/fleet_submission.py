"""Checks what users submit as a fleet. Every error names the field."""

from __future__ import annotations

import math
from collections.abc import Sequence

from malletrain.common.environment import FEED
from malletrain.fleet.problem import FleetPlanner
from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.fleets import MOST_GPUS_PER_NODE
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import check_paces, check_planner, is_feed, spec_from_proto
from malletrain.v1 import fleet_pb2, resources_pb2

MOST_MEMBERS = 1000
_MOST_NODES = 1_000_000
_LONGEST_NAME = 128


def check_fleet(specs: Sequence[resources_pb2.JobSpec], burst_buffer_gb: int) -> FleetSpec | None:
    """What the members of a fleet have in common; None if the jobs of this submission are no fleet.

    Args:
        specs: What was submitted, at least one.
        burst_buffer_gb: The quota of burst buffer in GB.

    Raises:
        InvalidInputError: it is no fleet that could train; the field is named like `specs[0].fleet.max_nodes`.
    """
    first = specs[0]
    for index, spec in enumerate(specs):
        if spec.HasField("fleet") != first.HasField("fleet"):
            raise InvalidInputError(f"specs[{index}].fleet", "a fleet in all specs of a submission, or in none")
    if not first.HasField("fleet"):
        return None
    fleet = _check_common("specs[0].fleet", first.fleet)
    for index, spec in enumerate(specs):
        if spec.fleet != first.fleet:
            raise InvalidInputError(f"specs[{index}].fleet", "the same as specs[0].fleet")
    _check_members(specs, fleet, burst_buffer_gb)
    return fleet


def _check_common(at: str, spec: fleet_pb2.FleetSpec) -> FleetSpec:
    if not spec.name.strip() or len(spec.name) > _LONGEST_NAME or not spec.name.isprintable():
        raise InvalidInputError(f"{at}.name", f"1 to {_LONGEST_NAME} printable characters", spec.name)
    if not 1 <= spec.max_nodes <= _MOST_NODES:
        raise InvalidInputError(f"{at}.max_nodes", f"1 to {_MOST_NODES}", spec.max_nodes)
    if not 0 <= spec.gpus_per_node <= MOST_GPUS_PER_NODE:
        expected = f"1 to {MOST_GPUS_PER_NODE} (0: as many as a node has)"
        raise InvalidInputError(f"{at}.gpus_per_node", expected, spec.gpus_per_node)
    for name in ("rate_tolerance", "samples_per_epoch", "preprocess_rate", "checkpoint_seconds"):
        value = getattr(spec, name)
        if not math.isfinite(value) or value < 0:
            raise InvalidInputError(f"{at}.{name}", "a finite number, at least 0", value)
    if spec.HasField("active_share") and not 0 <= spec.active_share <= 1:
        raise InvalidInputError(f"{at}.active_share", "0 to 1", spec.active_share)
    if spec.feed and not is_feed(spec.feed):
        raise InvalidInputError(f"{at}.feed", "MODULE:FUNCTION, or nothing", spec.feed)
    try:
        check_planner(spec.planner)
        check_paces(spec)
    except InvalidInputError as error:
        raise error.at(f"{at}.{error.field}") from None
    fleet = spec_from_proto(spec)
    if not fleet.samples_per_epoch and fleet.planner is not FleetPlanner.MILP:
        raise InvalidInputError(f"{at}.samples_per_epoch", "above 0, which planners other than MILP need", 0)
    return fleet


def _check_members(specs: Sequence[resources_pb2.JobSpec], fleet: FleetSpec, quota_gb: int) -> None:
    if len(specs) > MOST_MEMBERS:
        raise InvalidInputError("specs", f"at most {MOST_MEMBERS} members of a fleet", len(specs))
    names: dict[str, int] = {}
    burst_buffer_gb = 0
    for index, spec in enumerate(specs):
        at = f"specs[{index}]"
        if (earlier := names.setdefault(spec.name, index)) != index:
            raise InvalidInputError(f"{at}.name", f"another name than that of specs[{earlier}]", spec.name)
        burst_buffer_gb += spec.burst_buffer_gb
        _check_member(at, spec, fleet)
        if burst_buffer_gb > quota_gb >= spec.burst_buffer_gb:
            expected = f"at most {quota_gb} GB of all members together, the quota (job_manager.burst_buffer_gb)"
            raise InvalidInputError(f"{at}.burst_buffer_gb", expected, burst_buffer_gb)


def _check_member(at: str, spec: resources_pb2.JobSpec, fleet: FleetSpec) -> None:
    gpus = fleet.max_nodes * (fleet.gpus_per_node or MOST_GPUS_PER_NODE)
    for name in ("min_nodes", "max_nodes"):
        if getattr(spec, name) > gpus:
            what = f"at most {gpus}, the GPUs of fleet.max_nodes ({fleet.max_nodes}) nodes"
            raise InvalidInputError(f"{at}.{name}", what, getattr(spec, name))
    if fleet.feed is not None and spec.environment.get(FEED) != fleet.feed:
        expected = f"{fleet.feed!r}, as fleet.feed"
        raise InvalidInputError(f"{at}.environment[{FEED}]", expected, spec.environment.get(FEED, "nothing"))
    if spec.slots_per_node not in (0, 1):
        raise InvalidInputError(f"{at}.slots_per_node", "1: a member has one worker a GPU", spec.slots_per_node)
    for index, point in enumerate(spec.curve):
        if point.nodes > 0 and not point.rate > 0:
            raise InvalidInputError(f"{at}.curve[{index}].rate", "above 0, as for every member", point.rate)
