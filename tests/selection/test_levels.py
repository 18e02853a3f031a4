"""The searches over arrays choose what the compiled ones choose."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection import generations, genetic, levels, search
from malletrain.selection.generations import GeneticParameters
from malletrain.selection.problem import FreeResources, MachineResources, ResourceRequest, SelectionProblem
from malletrain.selection.select import SelectionSettings, SelectionSolver, front_of, genetic_front_of, select
from tests.selection.problems import problems
from tests.selection.test_genetic import window
from tests.selection.test_select import OPTIMISING, exact


@contextmanager
def over_arrays() -> Iterator[None]:
    """The searches are those that run where Numba is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "best_selection", levels.best_selection)
        patch.setattr(search, "pareto_front", levels.pareto_front)
        patch.setattr(genetic, "evolve", generations.evolve)
        yield


@settings(max_examples=300, deadline=None)
@given(problems(most=12), st.sampled_from(OPTIMISING))
def test_the_exact_choice(problem: SelectionProblem, method: str) -> None:
    def answers() -> list[object]:
        if method == "constrained-ssd" and not problem.machine.has_ssd:
            return [front_of(problem)]
        return [front_of(problem), select(problem, exact(method)).chosen]

    compiled = answers()
    with over_arrays():
        assert answers() == compiled


@settings(max_examples=100, deadline=None)
@given(
    problems(most=12),
    st.builds(
        GeneticParameters, st.integers(2, 9), st.integers(0, 20), st.sampled_from([0.0, 0.05, 1.0]), st.integers(0, 9)
    ),
)
def test_the_genetic_front(problem: SelectionProblem, parameters: GeneticParameters) -> None:
    compiled = genetic_front_of(problem, parameters)
    with over_arrays():
        assert genetic_front_of(problem, parameters) == compiled


@pytest.mark.parametrize(("jobs", "room"), [(20, 0.3), (64, 0.01)])
def test_windows_of_production_size(jobs: int, room: float) -> None:
    problem = window(jobs, random.Random(jobs), room)
    genetic_only = SelectionSettings(solver=SelectionSolver.GENETIC)
    compiled = [select(problem, settings).chosen for settings in (SelectionSettings(), genetic_only)]
    with over_arrays():
        answers = [select(problem, settings) for settings in (SelectionSettings(), genetic_only)]
    assert [answer.chosen for answer in answers] == compiled
    assert [answer.genetic for answer in answers] == [False, True]


def test_a_level_with_too_many_selections_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SelectionProblem(
        MachineResources(200, 300),
        FreeResources(60, 0, 90),
        tuple(ResourceRequest(3 + k % 5, 7 * k % 11) for k in range(40)),
    )
    monkeypatch.setattr(levels, "MAX_KEPT", 50)
    with over_arrays():
        assert select(problem, SelectionSettings()).genetic
        with pytest.raises(InvalidInputError, match="most_visits"):
            front_of(problem)


def test_the_dominated_are_found_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).integers(0, 4, (30, 4))
    ages = np.arange(30)
    whole = generations.survivors(points, ages, 30)
    monkeypatch.setattr(generations, "MAX_COMPARED", 100)
    order, first = generations.survivors(points, ages, 30)
    assert (order.tolist(), first) == (whole[0].tolist(), whole[1])
