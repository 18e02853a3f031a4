"""Which planner is the quickest for what is left of an ensemble: each is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.fleet.baselines import list_schedule, longest_first
from malletrain.fleet.lifecycle import FleetRun, fleet_global, fleet_global_seconds
from malletrain.fleet.makespan import Replanning, makespan
from malletrain.fleet.problem import FleetPlanner, FleetProblem
from malletrain.fleet.rates import rate_table

WORTH_IT = 0.05
"""How much shorter another planner's time must be, as a share of it."""


SIMULATED = (FleetPlanner.FLEET, FleetPlanner.MAKESPAN, FleetPlanner.LIST)
"""The planners that are compared."""


@dataclass(frozen=True)
class PlannerChoice:
    """The planner that was chosen.

    Attributes:
        seconds: Expected time of each planner.
        reason: Why, for people.
    """

    planner: FleetPlanner
    seconds: Mapping[FleetPlanner, float]
    reason: str


def choose(
    problem: FleetProblem, rules: Replanning | None = None, present: FleetPlanner | None = None
) -> PlannerChoice:
    """Take the planner with the shortest time, unless the present one is within 5 % of it.

    Without a present one, and among those within 5 % of the shortest, the first of `SIMULATED` is taken. With `rules`,
    each flotilla after the first one costs a stall, since members are started on other GPUs while all wait. Without,
    `fleet` takes as long as published.

    Args:
        problem: What is left of the ensemble.
        rules: How plans by remaining work change; None: the defaults.
        present: The planner that is used now; None: there is none.
    """
    seconds = {planner: _seconds(problem, planner, rules) for planner in SIMULATED}
    best = min(seconds, key=lambda planner: seconds[planner])
    order = sorted(seconds, key=lambda planner: planner is not present)
    chosen = next(planner for planner in order if seconds[planner] <= (1 + WORTH_IT) * seconds[best])
    return PlannerChoice(chosen, seconds, _reason(chosen, best, seconds))


def simulate_planner(problem: FleetProblem, planner: FleetPlanner, rules: Replanning | None = None) -> FleetRun:
    """What one of the planners in `SIMULATED` is expected to do; arguments as of `choose`."""
    match planner:
        case FleetPlanner.FLEET:
            return fleet_global(problem)
        case FleetPlanner.MAKESPAN:
            return makespan(problem, rules=rules)
        case _:
            return list_schedule(problem, longest_first(dict(enumerate(problem.samples())), rate_table(problem)))


def _seconds(problem: FleetProblem, planner: FleetPlanner, rules: Replanning | None) -> float:
    if planner is FleetPlanner.FLEET:
        return fleet_global_seconds(problem, rules.stall_s if rules else 0.0)
    return simulate_planner(problem, planner, rules).seconds


def _reason(chosen: FleetPlanner, best: FleetPlanner, seconds: Mapping[FleetPlanner, float]) -> str:
    times = ", ".join(f"{planner.value} {took:,.0f} s" for planner, took in seconds.items())
    if chosen is best:
        return f"{chosen.value} is the shortest: {times}"
    return f"{best.value} is not more than {100 * WORTH_IT:.0f} % shorter than {chosen.value}: {times}"
