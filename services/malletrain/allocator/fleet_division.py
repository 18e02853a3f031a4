"""How many GPUs each member of a fleet gets, by the fleet's planner (docs/fleet.md). Pure.

The same functions say what the fleet would train on any number of nodes, which is its scaling curve in a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from malletrain.allocator.fleet_profiling import profile_counts
from malletrain.allocator.fleet_whole_nodes import whole_node_counts
from malletrain.allocator.live_fleet import LiveFleet
from malletrain.fleet.baselines import longest_first
from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.problem import FleetPlanner, RateTolerance
from malletrain.fleet.rates import RateTable
from malletrain.fleet.remaining_work import replanned
from malletrain.fleet.replan import after_join, after_leave
from malletrain.fleet.sharing import Sharing

_ROUNDING = 1e-9
_KEPT = 256
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


@lru_cache(_KEPT)
def divided(moment: LiveFleet, gpus: int) -> FleetDivision:
    """Divide GPUs among the members of a fleet.

    As long as the rate of a member is not known at all, members train on one GPU each, so that it gets known.

    Args:
        moment: The fleet.
        gpus: GPUs to divide, at most `most_gpus`.
    """
    if not moment.members or gpus < 1:
        return FleetDivision(flotilla=moment.flotilla)
    measured = profile_counts(moment, gpus)
    if measured is not None:
        return _division(moment, measured.counts, gpus, measuring=measured.what)
    if moment.divider is FleetPlanner.FLEET:
        return _flotilla_division(moment, gpus)
    return _division(moment, _DIVIDERS[moment.divider](moment, moment.table, gpus), gpus)


def _division(
    moment: LiveFleet, counts: Counts, gpus: int, flotilla: tuple[tuple[str, int], ...] = (), measuring: str = ""
) -> FleetDivision:
    table = moment.table
    counts = _permitted(moment, counts, gpus)
    rates = {place: table.rate(place, count) for place, count in counts.items()}
    if not rates:
        return FleetDivision(flotilla=flotilla, measuring=measuring)
    in_flotilla = moment.divider is FleetPlanner.FLEET and not measuring
    paces = moment.preprocessing(Sharing.FLOTILLA if in_flotilla else Sharing.ALONE, gpus).paces(rates)
    named = tuple((moment.members[place].job_id, count) for place, count in counts.items())
    return FleetDivision(named, sum(paces.values()), min(paces.values()), flotilla, measuring)


def _permitted(moment: LiveFleet, counts: Counts, gpus: int) -> Counts:
    """The nearest numbers of GPUs that members may have: fewer, and more only for one that would have none."""
    found = {place: moment.members[place].most_within(count) for place, count in counts.items()}
    left = gpus - sum(found.values())
    for place, count in found.items():
        least = 0 if count else moment.members[place].least_from(counts[place])
        if 0 < least <= left:
            found[place], left = least, left - least
    return {place: count for place, count in found.items() if count}


def _one_each(moment: LiveFleet, table: RateTable, gpus: int) -> Counts:
    """One GPU each, the longest first; those that train go on."""
    work = moment.work()
    running = {place: left for place, left in work.items() if moment.members[place].held}
    waiting = {place: left for place, left in work.items() if place not in running}
    order = (*longest_first(running, table), *longest_first(waiting, table))
    return dict.fromkeys(order[:gpus], 1)


def _by_remaining_work(moment: LiveFleet, table: RateTable, gpus: int) -> Counts:
    """So that the last member ends as early as possible, anew if that is worth its stalls."""
    held = {place: member.held for place, member in enumerate(moment.members) if member.held}
    if sum(held.values()) > gpus:
        work = moment.work()
        running = longest_first({place: work[place] for place in held}, table)[:gpus]
        # With GPUs for all of them nobody need keep what he has; otherwise those that train go on.
        held = dict.fromkeys(running, 1) if len(work) > gpus else {}
    return replanned(table, moment.work(), held, gpus, moment.stall_s)


def _by_whole_nodes(moment: LiveFleet, table: RateTable, gpus: int) -> Counts:
    del table
    return whole_node_counts(moment, gpus // moment.gpus_per_node)


_DIVIDERS: dict[FleetPlanner, Callable[[LiveFleet, RateTable, int], Counts]] = {
    FleetPlanner.LIST: _one_each,
    FleetPlanner.MAKESPAN: _by_remaining_work,
    FleetPlanner.MILP: _by_whole_nodes,
}


def _flotilla_division(moment: LiveFleet, gpus: int) -> FleetDivision:
    """The present flotilla while enough of it trains: on fewer GPUs after a leave, on more if that is worth it."""
    table, places = moment.table, {member.job_id: place for place, member in enumerate(moment.members)}
    active = [(job_id, count) for job_id, count in moment.flotilla if job_id in places or job_id in moment.resting]
    present = Flotilla(
        tuple(places[job_id] for job_id, _ in active if job_id in places),
        tuple(count for job_id, count in active if job_id in places),
    )
    kept = [(job_id, count) for job_id, count in active if job_id in moment.resting]
    enough = moment.terms.active_share * sum(count for _, count in moment.flotilla) - _ROUNDING
    if not active or sum(count for _, count in active) < enough:
        tolerance = RateTolerance(share=moment.terms.rate_tolerance)
        return _begun(moment, create_flotilla(table, tuple(places.values()), gpus, tolerance), gpus)
    # Members that rest find what is left over when they come back: nobody stops for them.
    room = max(gpus - sum(count for _, count in kept), min(gpus, sum(present.gpus)))
    if not present.members:
        return FleetDivision(flotilla=moment.flotilla)
    if sum(present.gpus) > room:
        return _begun(moment, after_leave(table, present, room).flotilla, room, kept)
    if gpus > moment.flotilla_gpus:
        # GPUs of members that are done wait for the end of the flotilla, as in the paper.
        joined = sum(present.gpus) + min(gpus - moment.flotilla_gpus, room - sum(present.gpus))
        preprocessing = moment.preprocessing(Sharing.FLOTILLA, gpus)
        larger = after_join(table, present, joined, preprocessing, moment.forward_s, moment.stall_s)
        if larger != present:
            return _begun(moment, larger, room, kept)
    return _division(moment, dict(zip(present.members, present.gpus, strict=True)), room, moment.flotilla)


def _begun(moment: LiveFleet, flotilla: Flotilla, gpus: int, kept: Sequence[tuple[str, int]] = ()) -> FleetDivision:
    counts = dict(zip(flotilla.members, flotilla.gpus, strict=True))
    named = [(moment.members[place].job_id, count) for place, count in counts.items()]
    return _division(moment, counts, gpus, (*named, *kept))
