"""Methods against trying everything, HiGHS, the paper's example and recorded windows."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.methods import SelectionMethod, methods_for, weights_of
from malletrain.selection.problem import (
    FreeResources,
    MachineResources,
    ResourceRequest,
    SelectionProblem,
    objectives_of,
)
from malletrain.selection.rule import WasteReading
from malletrain.selection.select import SelectionSettings, SelectionSolver, front_of, select
from tests.selection.problems import (
    TABLE_1,
    brute_front,
    brute_rule,
    feasible,
    is_feasible,
    problems,
    recorded_problem,
    vector,
)
from tests.support.highs import reference_solver
from tests.support.shared import shared_path

OPTIMISING = [
    method for method in SelectionMethod if method not in (SelectionMethod.BIN_PACKING, SelectionMethod.IN_ORDER)
]


def exact(method: SelectionMethod, **more: Any) -> SelectionSettings:
    return SelectionSettings(method, SelectionSolver.EXACT, **more)


@pytest.mark.parametrize(
    ("method", "chosen"),
    [
        (SelectionMethod.CONSTRAINED_CPU, (0, 4)),
        (SelectionMethod.WEIGHTED_CPU, (0, 4)),
        (SelectionMethod.BIN_PACKING, (0, 4)),
        (SelectionMethod.BBSCHED, (1, 2, 3, 4)),
        (SelectionMethod.CONSTRAINED_BB, (1, 2, 3, 4)),
        (SelectionMethod.WEIGHTED, (1, 2, 3, 4)),
        (SelectionMethod.WEIGHTED_BB, (1, 2, 3, 4)),
        (SelectionMethod.IN_ORDER, (0, 3)),
    ],
)
@pytest.mark.parametrize("solver", list(SelectionSolver))
def test_the_example_of_the_paper(method: SelectionMethod, chosen: tuple[int, ...], solver: SelectionSolver) -> None:
    assert select(TABLE_1, SelectionSettings(method, solver)).chosen == chosen


def test_the_pareto_set_of_the_example() -> None:
    points = [(point.objectives.nodes, point.objectives.burst_buffer_gb) for point in front_of(TABLE_1)]
    assert points == [(80, 90), (100, 20)]


@settings(max_examples=300, deadline=None)
@given(problems())
def test_the_front_is_that_of_trying_everything(problem: SelectionProblem) -> None:
    found = {vector(point.objectives): point.chosen for point in front_of(problem)}
    assert found == brute_front(problem)


@settings(max_examples=300, deadline=None)
@given(problems(), st.sampled_from([0, 1, 2, 4]), st.sampled_from(WasteReading))
def test_the_rule_is_that_of_trying_everything(problem: SelectionProblem, factor: int, waste: WasteReading) -> None:
    chosen = select(problem, exact(SelectionMethod.BBSCHED, trade_off=Fraction(factor), waste=waste)).chosen
    assert chosen == brute_rule(problem, factor, waste)


@pytest.mark.parametrize(("waste", "chosen"), [(WasteReading.FIRST_CHOICE, (1, 2)), (WasteReading.MACHINE, (0,))])
def test_less_waste_is_a_percentage_of_the_waste(waste: WasteReading, chosen: tuple[int, ...]) -> None:
    """100 nodes waste 6,400 GB; 80 nodes waste nothing: all of that, but a third of the machine's SSD."""
    problem = SelectionProblem(
        MachineResources(100, 0, 50, 128, 256),
        FreeResources(50, 50, 0),
        (ResourceRequest(100, 0, 128), ResourceRequest(50, 0, 128), ResourceRequest(30, 0, 256)),
    )
    assert select(problem, exact(SelectionMethod.BBSCHED, waste=waste)).chosen == chosen
    assert select(problem, SelectionSettings(solver=SelectionSolver.GENETIC, waste=waste)).chosen == chosen


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from(OPTIMISING[:-1]))
def test_single_objectives_are_those_of_trying_everything(problem: SelectionProblem, method: SelectionMethod) -> None:
    if method is SelectionMethod.CONSTRAINED_SSD and not problem.machine.has_ssd:
        return
    weights = weights_of(method, problem).weights

    def value(chosen: tuple[int, ...]) -> int:
        point = vector(objectives_of(problem, chosen))
        return sum(weight * amount for weight, amount in zip(weights, point, strict=True))

    every = feasible(problem)
    assert select(problem, exact(method)).chosen == max(every, key=value)


@settings(max_examples=60, deadline=None)
@given(problems(most=14, plain=True), st.sampled_from(OPTIMISING))
def test_optima_are_those_of_highs(problem: SelectionProblem, method: SelectionMethod) -> None:
    if method in (SelectionMethod.BBSCHED, SelectionMethod.CONSTRAINED_SSD) or not problem.jobs:
        return
    weights = weights_of(method, problem).weights
    costs = [weights[0] * job.nodes + weights[1] * job.burst_buffer_gb for job in problem.jobs]
    model = reference_solver()
    chosen = [model.addBinary() for _ in problem.jobs]
    model.addConstr(sum(x * job.nodes for x, job in zip(chosen, problem.jobs, strict=True)) <= problem.free.nodes)
    model.addConstr(
        sum(x * job.burst_buffer_gb for x, job in zip(chosen, problem.jobs, strict=True))
        <= problem.free.burst_buffer_gb
    )
    if problem.places is not None:
        model.addConstr(sum(x * 1 for x in chosen) <= problem.places)
    model.maximize(sum(x * cost for x, cost in zip(chosen, costs, strict=True)))
    found = sum(costs[index] for index in select(problem, exact(method)).chosen)
    assert found == round(model.getObjectiveValue())


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from(list(SelectionMethod)), st.sampled_from(list(SelectionSolver)))
def test_what_is_selected_fits(problem: SelectionProblem, method: SelectionMethod, solver: SelectionSolver) -> None:
    if method in methods_for(problem.machine):
        assert is_feasible(problem, select(problem, SelectionSettings(method, solver)).chosen)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_bin_packing_leaves_no_job_that_fits(problem: SelectionProblem) -> None:
    chosen = select(problem, SelectionSettings(SelectionMethod.BIN_PACKING)).chosen
    others = set(range(len(problem.jobs))) - set(chosen)
    assert not any(is_feasible(problem, (*chosen, index)) for index in others)


def test_recorded_windows() -> None:
    windows = json.loads(shared_path("bbsched/workloads/windows-sample.json").read_text())
    for number, values in enumerate(windows):
        problem = recorded_problem(values)
        points = [list(vector(point.objectives))[: 4 if problem.machine.has_ssd else 2] for point in front_of(problem)]
        assert points == values["front"], number
        for name, expected in values["selected"].items():
            method = SelectionMethod(name.replace("_", "-"))
            found = select(problem, exact(method, waste=WasteReading.MACHINE))  # as they were recorded
            assert list(found.chosen) == expected, (number, name)


def test_beyond_the_limit_the_genetic_algorithm_answers_and_says_so() -> None:
    jobs = tuple(ResourceRequest(3 + index % 5, 7 * index % 11) for index in range(40))
    problem = SelectionProblem(MachineResources(200, 300), FreeResources(60, 0, 90), jobs)
    answer = select(problem, SelectionSettings(most_visits=50))
    assert answer.genetic
    assert is_feasible(problem, answer.chosen)
    with pytest.raises(InvalidInputError, match="most_visits"):
        select(problem, exact(SelectionMethod.BBSCHED, most_visits=50))
    with pytest.raises(InvalidInputError, match="most_visits"):
        front_of(problem, most_visits=50)


def test_what_is_refused() -> None:
    machine = MachineResources(10, 10)
    with pytest.raises(InvalidInputError, match=r"jobs\[0\].nodes: expected a whole number from 1"):
        SelectionProblem(machine, FreeResources(1), (ResourceRequest(0),))
    with pytest.raises(InvalidInputError, match=r"jobs\[1\].burst_buffer_gb"):
        SelectionProblem(machine, FreeResources(1), (ResourceRequest(1), ResourceRequest(1, -1)))
    with pytest.raises(InvalidInputError, match="jobs: expected at most 64"):
        SelectionProblem(machine, FreeResources(1), (ResourceRequest(1),) * 65)
    with pytest.raises(InvalidInputError, match="large_nodes"):
        MachineResources(10, 10, 11, 128, 256)
    with pytest.raises(InvalidInputError, match="large_ssd_gb"):
        MachineResources(10, 10, 5, 256, 128)
    with pytest.raises(InvalidInputError, match="constrained-ssd"):
        select(TABLE_1, exact(SelectionMethod.CONSTRAINED_SSD))
    with pytest.raises(InvalidInputError, match="trade_off"):
        select(TABLE_1, exact(SelectionMethod.BBSCHED, trade_off=Fraction(-1)))
    with pytest.raises(InvalidInputError, match="common multiple"):
        select(
            SelectionProblem(MachineResources(99_991, 999_999_999_989), FreeResources(1), (ResourceRequest(1),)),
            exact(SelectionMethod.WEIGHTED),
        )
