"""The dynamic program against HiGHS on larger problems."""

from __future__ import annotations

import random

import pytest

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, Formulation, JobDemand
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint


def problem(jobs: int, nodes: int, sizes: tuple[int, ...], cost: CostModel, seed: int) -> AllocationProblem:
    rng = random.Random(seed)
    names = tuple(f"n{index}" for index in range(nodes))
    free = list(names)
    demands = []
    for index in range(jobs):
        rate = rng.uniform(1000, 7000)
        points = []
        for scale in (1, 2, 4, 8, 16, 32, 64):
            points.append(ScalingPoint(scale, rate))
            rate *= rng.uniform(1.4, 2.3)
        held = tuple(free.pop() for _ in range(min(len(free), rng.randint(0, 2 * nodes // jobs))))
        up, down = rng.uniform(0, 60), rng.uniform(0, 30)
        permitted = sizes[rng.randrange(2) :]
        demands.append(JobDemand(f"j{index}", 1, 64, tuple(points), up, down, held, permitted_nodes=permitted))
    return AllocationProblem(names, 120.0, tuple(demands), cost)


@pytest.mark.parametrize("cost", list(CostModel))
@pytest.mark.parametrize("sizes", [(), (4, 32, 64), (7, 13, 29, 31, 37)])
@pytest.mark.parametrize(("jobs", "nodes"), [(12, 200), (25, 1200)])
def test_both_find_the_same_objective(jobs: int, nodes: int, sizes: tuple[int, ...], cost: CostModel) -> None:
    given = problem(jobs, nodes, sizes, cost, seed=jobs + len(sizes))
    integer = solve(given, Formulation.COUNTS, 60.0)
    assert integer.solver == "highs-counts", integer.fallback_reason
    assert solve(given, Formulation.DP).objective == pytest.approx(integer.objective, rel=1e-8)
