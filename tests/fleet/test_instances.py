"""The public instances, to the last digit that they have."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from malletrain.cli.fleet.ensemble_file import read_ensemble
from malletrain.cli.fleet.planning import comparison
from malletrain.cli.shared.output import to_dict
from malletrain.fleet.lifecycle import fleet_global
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import rate_table
from malletrain.reproduce.fleet.exhibits import exact_rounds
from tests.support.shared import shared_path

NAMES = (
    "p1-by-hand",
    "p2-pairs-and-orders",
    "p3-published-ensemble-80",
    "p4-published-ensemble-80-beyond-peak",
    "p5-slow-feed-own-pace",
)
_ELSEWHERE = ("rates", "exactAssignment", "greedyRounds", "exactRounds")
"""What the answers have beside a comparison."""


def instance(name: str) -> tuple[FleetProblem, dict[str, Any]]:
    problem = read_ensemble(shared_path(f"fleet/instances/{name}.json")).problem
    return problem, json.loads(shared_path(f"fleet/instances/{name}.expected.json").read_text())


def assert_equal(found: object, expected: object, place: str = "") -> None:
    """Equal in structure, names and order, and in numbers to their ten digits."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            assert_equal(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected), place
        for index, value in enumerate(expected):
            assert_equal(found[index], value, f"{place}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=2e-9, abs=1e-9), place
    else:
        assert found == expected, place


@pytest.mark.parametrize("name", NAMES)
def test_the_answers_are_exact(name: str) -> None:
    problem, expected = instance(name)
    found = to_dict(comparison(problem))
    del found["makespan"]
    assert_equal(found, {key: value for key, value in expected.items() if key not in _ELSEWHERE})
    table = rate_table(problem)
    rows = {model.id: list(row) for model, row in zip(problem.models, table.rows, strict=True)}
    assert_equal({key: rows[key] for key in expected["rates"]}, expected["rates"])


def test_the_greedy_and_the_best_rounds_of_the_tiny_instance() -> None:
    problem, expected = instance("p1-by-hand")
    simple = replace(problem, active_share=0.0, checkpoint_seconds=0.0)
    assert fleet_global(simple).seconds == pytest.approx(expected["greedyRounds"])
    assert expected["exactRounds"] == pytest.approx(exact_rounds(problem))


def test_no_assignment_of_the_tiny_instance_has_a_lower_score() -> None:
    problem, expected = instance("p1-by-hand")
    counts = [len(own) for own in fleet_global(problem).flotillas[0].gpus]
    scores = []
    for order in permutations(range(problem.gpus)):
        start, score = 0, 0.0
        for count in counts:
            own = order[start : start + count]
            score += len({gpu // problem.gpus_per_node for gpu in own}) / count
            start += count
        scores.append(score)
    assert min(scores) == pytest.approx(expected["exactAssignment"])
    assert fleet_global(problem).flotillas[0].score == pytest.approx(min(scores))
