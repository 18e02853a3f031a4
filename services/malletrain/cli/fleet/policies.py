"""Who divides the GPUs among the members of an ensemble, by name."""

from __future__ import annotations

from enum import StrEnum

from malletrain.fleet.baselines import list_schedule, longest_first, rounds, sequential
from malletrain.fleet.choose import PlannerChoice, choose, simulate_planner
from malletrain.fleet.lifecycle import FleetRun, fleet_global
from malletrain.fleet.local import fleet_local
from malletrain.fleet.makespan import makespan
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import rate_table
from malletrain.runtime.errors import InvalidInputError


class FleetPolicy(StrEnum):
    """Planners and what they are compared with."""

    FLEET = "fleet"
    FLEET_LOCAL = "fleet-local"
    MAKESPAN = "makespan"
    LIST = "list"
    LIST_IN_ORDER = "list-in-order"
    ROUNDS = "rounds"
    SEQUENTIAL = "sequential"
    MILP = "milp"
    AUTO = "auto"


def simulate_policy(problem: FleetProblem, policy: FleetPolicy) -> tuple[FleetRun, PlannerChoice | None]:
    """Train an ensemble by a policy.

    Returns:
        What happens, and with `auto` which planner was chosen.

    Raises:
        InvalidInputError: `milp` can't do it: nodes have no common preprocessing there.
    """
    if policy is FleetPolicy.AUTO:
        choice = choose(problem)
        return simulate_planner(problem, choice.planner), choice
    return _simulate(problem, policy), None


def _simulate(problem: FleetProblem, policy: FleetPolicy) -> FleetRun:
    in_order = range(len(problem.models))
    match policy:
        case FleetPolicy.FLEET_LOCAL:
            return fleet_local(problem)
        case FleetPolicy.MAKESPAN:
            return makespan(problem)
        case FleetPolicy.LIST:
            return list_schedule(problem, longest_first(dict(enumerate(problem.samples())), rate_table(problem)))
        case FleetPolicy.LIST_IN_ORDER:
            return list_schedule(problem, in_order)
        case FleetPolicy.ROUNDS:
            return rounds(problem, in_order)
        case FleetPolicy.SEQUENTIAL:
            return sequential(problem)
        case FleetPolicy.MILP:
            if problem.preprocess_rate:
                raise InvalidInputError("preprocess_rate", "0 with --policy milp", problem.preprocess_rate)
            # The allocator compiles its loops, for which no other policy should wait.
            from malletrain.simulator.fleet.idle_nodes import whole_nodes

            return whole_nodes(problem)
        case _:
            return fleet_global(problem)
