"""Conversions between messages of fleets and the words of `malletrain.fleet`, which services and the command share."""

from __future__ import annotations

import re

from malletrain.fleet.problem import BeyondPeak, FleetPlanner, Pace
from malletrain.fleet.spec import FleetSpec
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import message_of
from malletrain.v1 import fleet_pb2

_DEFAULTS = FleetSpec()
_FEED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_MAX_FEED_LENGTH = 1024
_PLANNERS = {fleet_pb2.FleetPlanner.Value(f"FLEET_PLANNER_{planner.name}"): planner for planner in FleetPlanner}
_PACES = {fleet_pb2.Pace.Value(f"PACE_{pace.name}"): pace for pace in Pace}
_BEYOND_PEAKS = {fleet_pb2.BeyondPeak.Value(f"BEYOND_PEAK_{beyond.name}"): beyond for beyond in BeyondPeak}


def planner_value(planner: FleetPlanner) -> fleet_pb2.FleetPlanner.ValueType:
    """The protobuf value of a planner."""
    return fleet_pb2.FleetPlanner.Value(f"FLEET_PLANNER_{planner.name}")


def planner_of(value: fleet_pb2.FleetPlanner.ValueType) -> FleetPlanner:
    """The planner of a protobuf value; AUTO where there is none, or one of a later version."""
    return _PLANNERS.get(value, _DEFAULTS.planner)


def pace_of(value: fleet_pb2.Pace.ValueType) -> Pace:
    """The pace of a protobuf value; LOCKSTEP where there is none, or one of a later version."""
    return _PACES.get(value, _DEFAULTS.pace)


def beyond_peak_of(value: fleet_pb2.BeyondPeak.ValueType) -> BeyondPeak:
    """What a value says of GPUs beyond a peak; AVOID where there is none, or one of a later version."""
    return _BEYOND_PEAKS.get(value, _DEFAULTS.beyond_peak)


def check_planner(value: fleet_pb2.FleetPlanner.ValueType) -> None:
    """Check that a planner is known, or not given.

    Raises:
        InvalidInputError: it is not; the field is named `planner`.
    """
    if value and value not in _PLANNERS:
        raise InvalidInputError("planner", "a known planner", value)


def is_feed(feed: str) -> bool:
    """Whether a text is MODULE:FUNCTION."""
    return len(feed) <= _MAX_FEED_LENGTH and _FEED.fullmatch(feed) is not None


def check_paces(message: fleet_pb2.FleetSpec | fleet_pb2.FleetProblem) -> None:
    """Check that pace and beyond_peak are known, or not given.

    Raises:
        InvalidInputError: they are not; the error names the field.
    """
    if message.pace and message.pace not in _PACES:
        raise InvalidInputError("pace", "a known pace", message.pace)
    if message.beyond_peak and message.beyond_peak not in _BEYOND_PEAKS:
        raise InvalidInputError("beyond_peak", "a known value", message.beyond_peak)


def spec_from_proto(message: fleet_pb2.FleetSpec) -> FleetSpec:
    """What members have in common by a message, with defaults filled in; it is not checked."""
    return FleetSpec(
        name=message.name,
        max_nodes=message.max_nodes,
        planner=planner_of(message.planner),
        gpus_per_node=message.gpus_per_node,
        rate_tolerance=message.rate_tolerance or _DEFAULTS.rate_tolerance,
        active_share=message.active_share if message.HasField("active_share") else _DEFAULTS.active_share,
        samples_per_epoch=message.samples_per_epoch,
        preprocess_rate=message.preprocess_rate,
        pace=pace_of(message.pace),
        beyond_peak=beyond_peak_of(message.beyond_peak),
        checkpoint_seconds=message.checkpoint_seconds,
        feed=message.feed if message.HasField("feed") else None,
    )


def spec_to_proto(spec: FleetSpec) -> fleet_pb2.FleetSpec:
    """What members have in common as a message."""
    return message_of(fleet_pb2.FleetSpec, spec)
