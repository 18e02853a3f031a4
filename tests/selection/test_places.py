"""Jobs of one place each: the uncompiled search against the general one, and for windows too long for brute force."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.places import select_for_places
from malletrain.selection.problem import (
    FreeResources,
    MachineResources,
    ReservedResources,
    ResourceRequest,
    SelectionProblem,
)
from malletrain.selection.select import SelectionSettings, SelectionSolver, select

EXACT = SelectionSettings(solver=SelectionSolver.EXACT)


@st.composite
def place_problems(draw: st.DrawFn) -> SelectionProblem:
    """Small amounts, so that there are ties of every kind."""
    places, quota = draw(st.integers(1, 8)), draw(st.integers(1, 30))
    free = FreeResources(draw(st.integers(0, places)), burst_buffer_gb=draw(st.integers(0, quota)))
    amounts = draw(st.lists(st.integers(0, 9), max_size=9))
    most = draw(st.none() | st.integers(0, places))
    jobs = tuple(ResourceRequest(1, amount) for amount in amounts)
    return SelectionProblem(MachineResources(places, quota), free, jobs, places=most)


@given(problem=place_problems())
def test_it_selects_as_the_general_search_does(problem: SelectionProblem) -> None:
    assert select_for_places(problem) == select(problem, EXACT).chosen


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_window_of_twenty(share: float) -> None:
    draw = random.Random(7)
    amounts = [draw.randint(1, 5000) for _ in range(20)]
    free = FreeResources(12, burst_buffer_gb=int(share * sum(amounts)))
    jobs = tuple(ResourceRequest(1, amount) for amount in amounts)
    problem = SelectionProblem(MachineResources(30, sum(amounts)), free, jobs)
    assert select_for_places(problem) == select(problem, EXACT).chosen


def test_more_burst_buffer_may_be_worth_a_place() -> None:
    jobs = tuple(ResourceRequest(1, amount) for amount in (1, 1, 4))
    machine, free = MachineResources(10, 4), FreeResources(3, burst_buffer_gb=4)
    assert select_for_places(SelectionProblem(machine, free, jobs)) == (2,)
    assert select_for_places(SelectionProblem(MachineResources(3, 4), free, jobs)) == (0, 1)


@pytest.mark.parametrize(
    "problem",
    [
        SelectionProblem(MachineResources(4, 4), FreeResources(4), (ResourceRequest(2),)),
        SelectionProblem(MachineResources(4, 4, 2, 1, 2), FreeResources(2, 2), (ResourceRequest(1),)),
        SelectionProblem(
            MachineResources(4, 4),
            FreeResources(4),
            (ResourceRequest(1),),
            ReservedResources(ResourceRequest(1), FreeResources(4), (True,)),
        ),
    ],
)
def test_other_problems_are_refused(problem: SelectionProblem) -> None:
    with pytest.raises(InvalidInputError, match="jobs of one node each"):
        select_for_places(problem)
