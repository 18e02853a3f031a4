"""FLEET-L: whenever a member is done, its GPUs get the next flotilla (Guan et al., MLSys 2020, local paradigm)."""

from __future__ import annotations

from malletrain.fleet.assignment import assign_gpus, assignment_score
from malletrain.fleet.flotilla import create_flotilla
from malletrain.fleet.lifecycle import FleetRun, FlotillaRun
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable, rate_table

_DIGITS = 9
"""Ends are compared as rounded to 1e-9 s: of members that end together, the earlier one is first."""


def fleet_local(problem: FleetProblem, actual: RateTable | None = None) -> FleetRun:
    """Train an ensemble by the local paradigm: each member at its own pace, without checkpoints.

    Args:
        problem: The ensemble; flotillas are made by its rates.
        actual: Rates at which members really train; None: those of the problem.
    """
    table = rate_table(problem)
    work = problem.samples()
    untrained = dict.fromkeys(range(len(work)))
    running: dict[int, tuple[int, ...]] = {}
    ends = [0.0] * len(work)
    runs: list[FlotillaRun] = []
    now, released = 0.0, tuple(range(problem.gpus))
    while untrained or running:
        if untrained:
            flotilla = create_flotilla(table, tuple(untrained), len(released), problem.tolerance)
            places = assign_gpus(flotilla.gpus, problem.gpus_per_node).gpus
            gpus = tuple(tuple(released[place] for place in own) for own in places)
            for member, own in zip(flotilla.members, gpus, strict=True):
                del untrained[member]
                running[member] = own
                ends[member] = now + work[member] / min((actual or table).rate(member, len(own)), problem.feed)
            last = max(ends[member] for member in flotilla.members)
            score = assignment_score(gpus, problem.gpus_per_node)
            runs.append(FlotillaRun(flotilla.members, gpus, score, now, last, flotilla.members))
        done = min(running, key=lambda member: (round(ends[member], _DIGITS), member))
        now, released = ends[done], running.pop(done)
    return FleetRun(max(ends), tuple(ends), tuple(runs))
