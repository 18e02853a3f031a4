"""What FLEET is compared with: lists of members on one GPU each, rounds of them, and one member after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.fleet.assignment import assign_gpus
from malletrain.fleet.flotilla import Flotilla
from malletrain.fleet.lifecycle import FleetRun, FlotillaRun, train_flotilla, train_to_next_end
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.fleet.sharing import of_others


def longest_first(work: Mapping[int, float], table: RateTable) -> list[int]:
    """Members by how long they train on one GPU, the longest first; of equals the earlier.

    Args:
        work: Samples that each member needs.
        table: Rates.
    """
    return sorted(work, key=lambda member: -work[member] / table.rate(member, 1))


def list_schedule(problem: FleetProblem, order: Sequence[int], actual: RateTable | None = None) -> FleetRun:
    """Train members on one GPU each; a GPU that is free takes the next of the list.

    Unless the problem says that members share, every one preprocesses for itself: where they ask for more than all CPUs
    can do, all get the same share of it.

    Args:
        problem: The ensemble.
        order: The list: positions of the members.
        actual: Rates at which members really train; None: those of the problem.
    """
    table, preprocessing, total = actual or rate_table(problem), of_others(problem), problem.samples()
    remaining_samples = dict(enumerate(total))
    waiting = list(reversed(order))
    running: list[int] = []
    ends, now = [0.0] * len(remaining_samples), 0.0
    while waiting or running:
        while waiting and len(running) < problem.gpus:
            running.append(waiting.pop())
        rates = {member: table.rate(member, 1) for member in running}
        rates = preprocessing.paces(rates, {member: total[member] - remaining_samples[member] for member in running})
        seconds, done = train_to_next_end(remaining_samples, rates, problem.samples_per_epoch)
        now += seconds
        for member in done:
            ends[member] = now
            running.remove(member)
    return FleetRun(now, tuple(ends))


def rounds(problem: FleetProblem, order: Sequence[int], actual: RateTable | None = None) -> FleetRun:
    """Homogeneous training: as many members at a time as there are GPUs, one GPU each, until all of them are done.

    They share preprocessing and advance at the problem's pace. Nothing is checkpointed.

    Args:
        problem: The ensemble.
        order: Positions of the members; the first ones make the first round.
        actual: Rates at which members really train; None: those of the problem.
    """
    table = actual or rate_table(problem)
    remaining_samples = dict(enumerate(problem.samples()))
    ends, runs, now, waiting, unassigned = [0.0] * len(remaining_samples), [], 0.0, 0.0, 0.0
    for first in range(0, len(order), problem.gpus):
        flotilla = Flotilla(tuple(order[first : first + problem.gpus]), (1,) * len(order[first : first + problem.gpus]))
        seconds, done = train_flotilla(problem, table, flotilla, remaining_samples, active_share=0.0)
        assignment = assign_gpus(flotilla.gpus, problem.gpus_per_node)
        for member, after in done.items():
            ends[member] = now + after
            waiting += seconds - after
        unassigned += seconds * (problem.gpus - len(flotilla.members))
        runs.append(
            FlotillaRun(flotilla.members, assignment.gpus, assignment.score, now, now + seconds, flotilla.members)
        )
        now += seconds
    return FleetRun(now, tuple(ends), tuple(runs), waiting, unassigned)


def sequential(problem: FleetProblem, actual: RateTable | None = None) -> FleetRun:
    """Train one member after the other on as many of all GPUs as it may have.

    Args:
        problem: The ensemble.
        actual: Rates at which members really train; None: those of the problem.
    """
    table = rate_table(problem)
    ends, now = [], 0.0
    for member, work in enumerate(problem.samples()):
        gpus = table.most(member, problem.gpus)
        now += work / min((actual or table).rate(member, gpus), problem.feed)
        ends.append(now)
    return FleetRun(now, tuple(ends))
