"""How many GPUs each member of a fleet gets, by the fleet's planner (docs/fleet.md). Pure.

The same functions say what the fleet would train on any number of nodes, which is its scaling curve in a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from malletrain.allocator.fleets.live_fleet import LiveFleet
from malletrain.allocator.fleets.profiling import profile_counts
from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.allocator.problem.objective import ScaleRates
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.allocator.solvers.knapsack import Floats
from malletrain.fleet.baselines import longest_first
from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.problem import FleetPlanner, RateTolerance
from malletrain.fleet.rates import RateTable
from malletrain.fleet.remaining_work import replan_counts
from malletrain.fleet.replan import after_join, after_leave
from malletrain.fleet.sharing import Sharing

_MAX_MEMBERS_CACHED = 4096


def whole_node_counts(live: LiveFleet, nodes: int) -> dict[int, int]:
    """GPUs of the members that train, by their places: those of the nodes with which together they train most.

    Args:
        live: The fleet.
        nodes: How many nodes there are.
    """
    if nodes < 1:
        return {}
    per_node, rows = live.gpus_per_node, live.table.rows
    jobs, currents, first = [], [], 0
    for place, member in enumerate(live.members):
        held = min(-(-member.held // per_node), nodes - first)
        first += held
        most = max(1, min(member.largest, live.max_gpus) // per_node)
        rates = _node_rates(rows[place][: live.max_gpus], per_node, most)
        jobs.append(_scales(rates, nodes, held, live.stall_s))
        currents.append(held)
    choice = ChoiceTable.of(jobs).choose(currents, nodes, ObjectiveParameters(live.forward_s, CostModel.STALL))
    return {place: int(count) * per_node for place, count in enumerate(choice.counts) if count}


@lru_cache(_MAX_MEMBERS_CACHED)
def _node_rates(row: tuple[float, ...], per_node: int, max_nodes: int) -> Floats:
    """Samples per second on 0, 1, 2… nodes, up to `max_nodes`, from those on 1, 2… GPUs; constant beyond the last."""
    return np.asarray([0.0, *(row[min(nodes * per_node, len(row)) - 1] for nodes in range(1, max_nodes + 1))])


def _scales(rates: Floats, nodes: int, held: int, stall_s: float) -> ScaleRates:
    """Scales of a member in a pool of so many nodes."""
    permitted = rates[: nodes + 1]
    return ScaleRates(np.arange(len(permitted)), permitted, rates[: max(nodes, held) + 1], stall_s, stall_s)


_ROUNDING = 1e-9
_MAX_DIVISIONS_CACHED = 256
Counts = dict[int, int]
"""GPUs of members that train, by their places."""


@dataclass(frozen=True, slots=True)
class FleetDivision:
    """How many GPUs each member gets.

    Attributes:
        counts: Jobs that train with their GPUs, in the order in which they were chosen.
        rate: What they together are expected to train, in samples per second.
        pace: Samples per second of the slowest; 0: none trains.
        flotilla: The flotilla as it began; empty without flotillas.
        measuring: What is measured meanwhile, for people; empty: nothing.
    """

    counts: tuple[tuple[str, int], ...] = ()
    rate: float = 0.0
    pace: float = 0.0
    flotilla: tuple[tuple[str, int], ...] = ()
    measuring: str = ""


@lru_cache(_MAX_DIVISIONS_CACHED)
def divide_gpus(live: LiveFleet, gpus: int) -> FleetDivision:
    """Divide GPUs among the members of a fleet.

    As long as the rate of a member is not known at all, members train on one GPU each, so that it gets known.

    Args:
        live: The fleet.
        gpus: GPUs to divide, at most `max_gpus`.
    """
    if not live.members or gpus < 1:
        return FleetDivision(flotilla=live.flotilla)
    measured = profile_counts(live, gpus)
    if measured is not None:
        return _division(live, measured.counts, gpus, measuring=measured.what)
    if live.divider is FleetPlanner.FLEET:
        return _flotilla_division(live, gpus)
    return _division(live, _DIVIDERS[live.divider](live, live.table, gpus), gpus)


def _division(
    live: LiveFleet, counts: Counts, gpus: int, flotilla: tuple[tuple[str, int], ...] = (), measuring: str = ""
) -> FleetDivision:
    table = live.table
    counts = _to_permitted_counts(live, counts, gpus)
    rates = {place: table.rate(place, count) for place, count in counts.items()}
    if not rates:
        return FleetDivision(flotilla=flotilla, measuring=measuring)
    in_flotilla = live.divider is FleetPlanner.FLEET and not measuring
    paces = live.preprocessing(Sharing.FLOTILLA if in_flotilla else Sharing.ALONE, gpus).paces(rates)
    named = tuple((live.members[place].job_id, count) for place, count in counts.items())
    return FleetDivision(named, sum(paces.values()), min(paces.values()), flotilla, measuring)


def _to_permitted_counts(live: LiveFleet, counts: Counts, gpus: int) -> Counts:
    """The nearest numbers of GPUs that members may have: fewer, and more only for one that would have none."""
    permitted = {place: live.members[place].max_within(count) for place, count in counts.items()}
    unused = gpus - sum(permitted.values())
    for place, count in permitted.items():
        least = 0 if count else live.members[place].least_from(counts[place])
        if 0 < least <= unused:
            permitted[place], unused = least, unused - least
    return {place: count for place, count in permitted.items() if count}


def _one_each(live: LiveFleet, table: RateTable, gpus: int) -> Counts:
    """One GPU each, members with most remaining work first; those that train go on."""
    work = live.work()
    running = {place: remaining for place, remaining in work.items() if live.members[place].held}
    waiting = {place: remaining for place, remaining in work.items() if place not in running}
    order = (*longest_first(running, table), *longest_first(waiting, table))
    return dict.fromkeys(order[:gpus], 1)


def _by_remaining_work(live: LiveFleet, table: RateTable, gpus: int) -> Counts:
    """GPUs so that the last member ends as early as possible; made anew only where that is worth its stalls."""
    held = {place: member.held for place, member in enumerate(live.members) if member.held}
    if sum(held.values()) > gpus:
        work = live.work()
        running = longest_first({place: work[place] for place in held}, table)[:gpus]
        # With GPUs for all of them nobody need keep what he has; otherwise those that train go on.
        held = dict.fromkeys(running, 1) if len(work) > gpus else {}
    return replan_counts(table, live.work(), held, gpus, live.stall_s)


def _by_whole_nodes(live: LiveFleet, table: RateTable, gpus: int) -> Counts:
    del table
    return whole_node_counts(live, gpus // live.gpus_per_node)


_DIVIDERS: dict[FleetPlanner, Callable[[LiveFleet, RateTable, int], Counts]] = {
    FleetPlanner.LIST: _one_each,
    FleetPlanner.MAKESPAN: _by_remaining_work,
    FleetPlanner.MILP: _by_whole_nodes,
}


def _flotilla_division(live: LiveFleet, gpus: int) -> FleetDivision:
    """The present flotilla while enough of it trains: on fewer GPUs after a leave, on more if that is worth it."""
    table, places = live.table, {member.job_id: place for place, member in enumerate(live.members)}
    active = [(job_id, count) for job_id, count in live.flotilla if job_id in places or job_id in live.resting]
    present = Flotilla(
        tuple(places[job_id] for job_id, _ in active if job_id in places),
        tuple(count for job_id, count in active if job_id in places),
    )
    resting = [(job_id, count) for job_id, count in active if job_id in live.resting]
    enough = live.terms.active_share * sum(count for _, count in live.flotilla) - _ROUNDING
    if not active or sum(count for _, count in active) < enough:
        tolerance = RateTolerance(share=live.terms.rate_tolerance)
        return _begin(live, create_flotilla(table, tuple(places.values()), gpus, tolerance), gpus)
    # Members that rest find what is left over when they come back: nobody stops for them.
    room = max(gpus - sum(count for _, count in resting), min(gpus, sum(present.gpus)))
    if not present.members:
        return FleetDivision(flotilla=live.flotilla)
    if sum(present.gpus) > room:
        return _begin(live, after_leave(table, present, room).flotilla, room, resting)
    if gpus > live.flotilla_gpus:
        # GPUs of members that are done wait for the end of the flotilla, as in the paper.
        joined = sum(present.gpus) + min(gpus - live.flotilla_gpus, room - sum(present.gpus))
        preprocessing = live.preprocessing(Sharing.FLOTILLA, gpus)
        larger = after_join(table, present, joined, preprocessing, live.forward_s, live.stall_s)
        if larger != present:
            return _begin(live, larger, room, resting)
    return _division(live, dict(zip(present.members, present.gpus, strict=True)), room, live.flotilla)


def _begin(live: LiveFleet, flotilla: Flotilla, gpus: int, resting: Sequence[tuple[str, int]] = ()) -> FleetDivision:
    counts = dict(zip(flotilla.members, flotilla.gpus, strict=True))
    named = [(live.members[place].job_id, count) for place, count in counts.items()]
    return _division(live, counts, gpus, (*named, *resting))
