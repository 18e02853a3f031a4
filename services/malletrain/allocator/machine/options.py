"""What an operator chooses about plans. Needs nothing of what makes them, so that settings can be read without that."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from malletrain.allocator.problem.pools import PlannerOptions


@dataclass(frozen=True)
class MachineOptions:
    """The operator's choices.

    Attributes:
        planner: What a plan's problem depends on.
        coalesce_seconds: Seconds from an event to the plan.
        replan_seconds: Least seconds between plans for changed curves or weights alone, or for deadlines that have come
            nearer; 0: there are none.
        fleet_replan_seconds: Seconds after a plan at which fleets are divided by remaining work again; 0: never.
        fleet_measuring_seconds: How long the rate of a fleet's member may take to get known, in seconds.
    """

    planner: PlannerOptions
    coalesce_seconds: float = 0.05
    replan_seconds: float = 60.0
    fleet_replan_seconds: float = 0.0
    fleet_measuring_seconds: float = inf
