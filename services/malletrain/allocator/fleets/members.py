"""Fleets as a plan sees them: what members have in common, and how their GPUs were divided. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.fleet.problem import FleetPlanner
from malletrain.fleet.spec import FleetSpec


@dataclass(frozen=True, slots=True)
class FleetMember:
    """What makes a job a member of a fleet.

    Attributes:
        fleet_id: The fleet.
        name: Its name, unique in the fleet.
        terms: What the members have in common.
        samples: Samples that it has trained on.
        target_samples: Samples with which it is believed to be done; 0: not known.
        profiled: Whether its rates on several GPUs are measured on purpose where they are not known.
        feed_rate: Samples per second that its feed can prepare on a node, as measured; 0: not known.
    """

    fleet_id: str
    name: str
    terms: FleetSpec
    samples: int = 0
    target_samples: int = 0
    profiled: bool = False
    feed_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class LateRate:
    """The rate of a member that was not measured in time: the member is no longer given GPUs for that alone.

    Attributes:
        gpus: GPUs that the member had.
        seconds: For how long it had them.
    """

    gpus: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FleetDecision:
    """How a plan divides the GPUs of a fleet.

    Attributes:
        fleet_id: The fleet.
        divider: Who divides; not AUTO.
        reason: Why, and what is measured meanwhile, for people.
        rate: What the members together are expected to train, in samples per second.
        pace: Samples per second of the slowest member that trains; 0: none does.
        members: GPUs of each member that takes part, by NODE#NUMBER; none: it waits.
        flotilla: The flotilla as it began: jobs with how many GPUs it gives them. Empty without flotillas.
        gpus: How many GPUs there were to divide.
        compared_gpus: For how many GPUs planners were compared when this one was chosen; 0: they were not.
        late_rates: Members whose rates did not come in time.
        planner_reason: Why this planner divides: the part of `reason` that holds until planners are compared anew.
        preprocess_rate: Samples per second that CPUs are reckoned to preprocess; 0: no limit.
    """

    fleet_id: str
    divider: FleetPlanner
    reason: str = ""
    rate: float = 0.0
    pace: float = 0.0
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()
    flotilla: tuple[tuple[str, int], ...] = ()
    gpus: int = 0
    compared_gpus: int = 0
    late_rates: tuple[tuple[str, LateRate], ...] = ()
    planner_reason: str = ""
    preprocess_rate: float = 0.0
