"""The best possible flotillas of small ensembles, and how far FLEET is from them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings

from malletrain.cli.fleet.ensemble_file import read_ensemble
from malletrain.fleet.lifecycle import fleet_global
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.problem import FleetProblem, Pace
from malletrain.fleet.rates import rate_table
from malletrain.reproduce.fleet.exhibits import exact_rounds, gap, gap_exhibit, random_problem, simple_setting
from tests.fleet.problems import problems
from tests.support.shared import shared_path


def test_the_best_rounds_of_the_tiny_public_instance() -> None:
    problem = read_ensemble(shared_path("fleet/instances/p1-by-hand.json")).problem
    expected = json.loads(shared_path("fleet/instances/p1-by-hand.expected.json").read_text())
    assert exact_rounds(problem) == pytest.approx(expected["exactRounds"])
    assert gap(problem).rounds == pytest.approx(expected["greedyRounds"] / expected["exactRounds"])


@settings(max_examples=40, deadline=None)
@given(problem=problems(max_models=3, max_gpus=4))
def test_no_flotillas_are_better_than_the_best(problem: FleetProblem) -> None:
    found = exact_rounds(problem)
    assert found == pytest.approx(min(every_time(problem)))
    assert found <= fleet_global(simple_setting(problem)).seconds * (1 + 1e-9)
    assert found >= lower_bound(problem) * (1 - 1e-9)


def every_time(problem: FleetProblem) -> Iterator[float]:
    """Times of all ways to put members into numbered rounds, each on every number of GPUs, added up by hand."""
    table, work = rate_table(problem), problem.samples()
    members = range(len(work))
    for places in product(members, repeat=len(work)):
        for counts in product(range(1, problem.gpus + 1), repeat=len(work)):
            rounds = [[m for m in members if places[m] == place] for place in sorted(set(places))]
            if all(sum(counts[m] for m in own) <= problem.gpus for own in rounds):
                yield sum(_seconds(problem, {m: table.rate(m, counts[m]) for m in own}, work) for own in rounds)


def _seconds(problem: FleetProblem, rates: dict[int, float], work: list[float]) -> float:
    if problem.pace is Pace.OWN:
        return max(work[m] / min(rate, problem.feed) for m, rate in rates.items())
    now = trained = 0.0
    for member in sorted(rates, key=lambda m: work[m]):
        left = [rates[m] for m in rates if work[m] >= work[member]]
        now += (work[member] - trained) / min(*left, problem.feed)
        trained = work[member]
    return now


def test_random_ensembles_come_from_the_seed_and_are_summed_up() -> None:
    found, again = (random_problem(random.Random(5)) for _ in range(2))
    assert found == again
    assert 2 <= len(found.models) <= 5
    exhibit = gap_exhibit(instances=10)
    rows = {str(row[0]): row[1:] for row in exhibit.rows}
    assert len(rows) == 2
    for mean, median, most, exact in rows.values():
        assert 0 <= float(median or 0) <= float(most or 0)
        assert 0 < float(mean or 0) <= float(most or 0)
        assert 0 <= float(exact or 0) < 10
