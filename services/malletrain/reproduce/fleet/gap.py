"""How far FLEET is from the best possible, on small random ensembles for which everything can be tried."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from statistics import fmean, median

from malletrain.fleet.flotilla import Flotilla
from malletrain.fleet.lifecycle import fleet_global, train_flotilla
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import EnsembleModel, FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.reproduce.exhibits import Cell, Exhibit, rounded

INSTANCES = 300
_MAX_MODELS, _MAX_GPUS = 5, 9
_EXACT = 1e-9
_PUBLISHED_RATES = (20.0, 180.0)
"""Samples/s on one GPU: those of the published networks."""


@dataclass(frozen=True, slots=True)
class FleetGap:
    """How far FLEET is from the best possible, for one ensemble.

    Attributes:
        rounds: Time of greedy flotillas in the simple setting over that of the best ones.
        whole: Time of FLEET-G over the bound that no schedule can beat.
    """

    rounds: float
    whole: float


def simple_setting(problem: FleetProblem) -> FleetProblem:
    """Every flotilla ends when all of its members are done, and nothing is checkpointed."""
    return replace(problem, active_share=0.0, checkpoint_seconds=0.0)


def exact_rounds(problem: FleetProblem) -> float:
    """The shortest time in seconds in the simple setting: all flotillas and all numbers of GPUs are tried.

    Args:
        problem: The ensemble, small: each subset of its members is tried with each division of the GPUs.
    """
    simple = simple_setting(problem)
    table = rate_table(simple)

    @cache
    def best(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        # Flotillas do not depend on each other: the one with the first member may go first.
        first, *others = sorted(left)
        return min(
            _fastest(simple, table, (first, *more)) + best(left - {first, *more})
            for size in range(min(len(left), simple.gpus))
            for more in combinations(others, size)
        )

    return best(frozenset(range(len(simple.models))))


def random_problem(rng: random.Random) -> FleetProblem:
    """At most 5 members on at most 9 GPUs, whose rates rise with every GPU by less than in proportion."""
    models = []
    for number in range(rng.randint(2, _MAX_MODELS)):
        single, share = rng.uniform(*_PUBLISHED_RATES), rng.uniform(0.7, 1.0)
        rates = tuple(single * count**share for count in range(1, _MAX_GPUS + 1))
        models.append(EnsembleModel(f"m{number}", rates, rng.randint(10, 24)))
    gpus = rng.randint(2, _MAX_GPUS)
    return FleetProblem(tuple(models), gpus, rng.randint(1, 4), samples_per_epoch=1000.0)


def gap(problem: FleetProblem) -> FleetGap:
    """How far FLEET is from the best possible for an ensemble."""
    greedy = fleet_global(simple_setting(problem)).seconds
    return FleetGap(greedy / exact_rounds(problem), fleet_global(problem).seconds / lower_bound(problem))


def gap_exhibit(instances: int = INSTANCES, seed: int = 0) -> Exhibit:
    """FLEET beside the best possible on random ensembles."""
    rng = random.Random(seed)
    gaps = [gap(random_problem(rng)) for _ in range(instances)]
    rows: list[tuple[Cell, ...]] = [
        ("greedy flotillas in the simple setting, over the best ones", *_summary([each.rounds for each in gaps])),
        ("FLEET-G, over the bound", *_summary([each.whole for each in gaps])),
    ]
    return Exhibit(
        "gap",
        f"How far from the best possible: {instances} small random ensembles",
        ("what", "mean, %", "median, %", "most, %", "instances at the optimum"),
        rounded(rows, 3),
        "Ours alone. 2 to 5 networks of 20 to 180 samples/s on one GPU and 10 to 24 epochs, on 2 to 9 GPUs; their "
        "rates rise with the number of GPUs to the power of 0.7 to 1. In the simple setting each network is in one "
        "flotilla, which ends when all of it are done: all flotillas with all divisions of the GPUs are tried.",
    )


def _summary(ratios: Sequence[float]) -> tuple[Cell, ...]:
    over = [100 * (ratio - 1) for ratio in ratios]
    return fmean(over), median(over), max(over), sum(ratio <= 1 + _EXACT for ratio in ratios)


def _fastest(problem: FleetProblem, table: RateTable, members: tuple[int, ...]) -> float:
    """The shortest time of a flotilla of these members."""
    work = problem.samples()
    return min(
        train_flotilla(problem, table, Flotilla(members, counts), {member: work[member] for member in members}, 0.0)[0]
        for counts in _divisions(problem.gpus, len(members))
    )


def _divisions(gpus: int, members: int) -> Iterator[tuple[int, ...]]:
    """All numbers of GPUs, at least one each."""
    if members == 0:
        yield ()
        return
    for count in range(1, gpus - members + 2):
        for rest in _divisions(gpus - count, members - 1):
            yield (count, *rest)
