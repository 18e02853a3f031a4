"""The genetic algorithm: what it finds fits, and more effort finds more."""

from __future__ import annotations

import json
import random
from statistics import fmean

import pytest
from hypothesis import given, settings

from malletrain.reproduce.bbsched.searches import generational_distance
from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.generations import GeneticParameters
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.problem import FreeResources, MachineResources, ResourceRequest, SelectionProblem
from malletrain.selection.rule import WasteReading
from malletrain.selection.select import (
    SelectionSettings,
    SelectionSolver,
    front_of,
    genetic_front_of,
    select,
)
from tests.selection.problems import TABLE_1, dominates, is_feasible, problems, recorded_problem
from tests.support.shared import shared_path

MACHINE = MachineResources(4000, 1_000_000)


def window(jobs: int, rng: random.Random, room: float) -> SelectionProblem:
    rows = tuple(ResourceRequest(rng.randint(1, 400), rng.randint(0, 100_000)) for _ in range(jobs))
    nodes, burst_buffer = (
        int(room * sum(values)) for values in ([r.nodes for r in rows], [r.burst_buffer_gb for r in rows])
    )
    return SelectionProblem(MACHINE, FreeResources(min(4000, nodes), 0, min(1_000_000, burst_buffer)), rows)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_its_points_fit_and_do_not_dominate_each_other(problem: SelectionProblem) -> None:
    points = genetic_front_of(problem, GeneticParameters(population=7, generations=20, mutation=0.1))
    assert all(is_feasible(problem, point.chosen) for point in points)
    assert not any(dominates(one.objectives, two.objectives) for one in points for two in points)


def mean_distance(population: int, generations: int) -> float:
    distances = []
    for seed in range(12):
        problem = window(16, random.Random(seed), 0.4)
        found = genetic_front_of(problem, GeneticParameters(population, generations, seed=seed))
        true = [point.objectives for point in front_of(problem)]
        distances.append(generational_distance([point.objectives for point in found], true, MACHINE))
    return fmean(distances)


def test_the_distance_to_the_pareto_set_falls_with_generations_and_population() -> None:
    assert mean_distance(20, 2000) < mean_distance(20, 100) < mean_distance(20, 1)
    assert mean_distance(60, 500) < mean_distance(20, 500) < mean_distance(4, 500)


def test_the_same_seed_finds_the_same() -> None:
    problem = window(20, random.Random(1), 0.5)
    one, two, other = (genetic_front_of(problem, GeneticParameters(seed=seed)) for seed in (3, 3, 4))
    assert one == two
    assert one != other


def test_on_small_windows_it_mostly_chooses_as_the_exact_search() -> None:
    same = 0
    for seed in range(100):
        problem = window(8, random.Random(seed), 0.5)
        answers = [
            select(problem, SelectionSettings(solver=solver, genetic=GeneticParameters(100, 500, 0.01)))
            for solver in (SelectionSolver.EXACT, SelectionSolver.GENETIC)
        ]
        same += answers[0].chosen == answers[1].chosen
    assert same >= 95


def test_on_recorded_windows_the_genetic_algorithm_mostly_chooses_as_the_exact_search() -> None:
    windows = json.loads(shared_path("bbsched/workloads/windows-sample.json").read_text())
    same = []
    for values in windows:
        problem = recorded_problem(values)
        if sum(_fits_alone(problem, job) for job in problem.jobs) > 14:
            continue
        for name, expected in values["selected"].items():
            method = SelectionMethod(name.replace("_", "-"))
            if method in (SelectionMethod.BIN_PACKING, SelectionMethod.IN_ORDER):
                continue
            for seed in range(4):
                parameters = GeneticParameters(seed=seed)
                settings = SelectionSettings(
                    method, SelectionSolver.GENETIC, genetic=parameters, waste=WasteReading.MACHINE
                )
                same.append(list(select(problem, settings).chosen) == expected)
    assert len(same) == 4 * 191
    assert sum(same) / len(same) >= 0.95


def _fits_alone(problem: SelectionProblem, job: ResourceRequest) -> bool:
    free = problem.free
    nodes = free.large if problem.machine.wants_large(job) else free.nodes
    return job.nodes <= nodes and job.burst_buffer_gb <= free.burst_buffer_gb


def test_the_distance_of_the_front_to_itself_is_0() -> None:
    front = [point.objectives for point in front_of(TABLE_1)]
    assert generational_distance(front, front, TABLE_1.machine) == 0
    with pytest.raises(InvalidInputError, match="at least one point"):
        generational_distance([], front, TABLE_1.machine)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("population", {"population": 1}),
        ("generations", {"generations": -1}),
        ("mutation", {"mutation": 1.5}),
        ("seed", {"seed": -1}),
    ],
)
def test_parameters_out_of_range_are_refused(field: str, values: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=field):
        GeneticParameters(**values)
