"""No optimum contains a size that is discarded, and few sizes remain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
from malletrain.allocator.problem.objective import ScaleValues, scale_values
from malletrain.allocator.solvers.choice_table import best_reduced_places
from malletrain.allocator.solvers.knapsack import TIE, best_places
from malletrain.allocator.solvers.reduction import reduce_sizes
from malletrain.model.scaling import ScalingPoint
from tests.allocator.problems import problems
from tests.allocator.test_ties import a_job


def best_answers(jobs: Sequence[ScaleValues], pool: int) -> set[tuple[int, ...]]:
    """Counts of all optima, by exhaustive search."""
    found: dict[tuple[int, ...], float] = {}
    for indices in product(*(range(len(job.sizes)) for job in jobs)):
        counts = tuple(int(job.sizes[index]) for job, index in zip(jobs, indices, strict=True))
        if sum(counts) <= pool:
            found[counts] = sum(float(job.values[index]) for job, index in zip(jobs, indices, strict=True))
    best = max(found.values())
    return {counts for counts, value in found.items() if value >= best - 1e-12 * abs(best)}


@settings(deadline=None, max_examples=200)
@given(jobs=st.lists(a_job(), min_size=1, max_size=4), pool=st.integers(0, 14))
def test_every_best_answer_stays_where_many_tie(jobs: list[ScaleValues], pool: int) -> None:
    assert best_answers(reduce_sizes(jobs, pool), pool) == best_answers(jobs, pool)


@settings(deadline=None, max_examples=100)
@given(problem=problems(max_jobs=3))
def test_every_best_answer_stays_for_any_curve(problem: AllocationProblem) -> None:
    jobs = [scale_values(job, problem) for job in problem.jobs]
    pool = len(problem.nodes)
    assert best_answers(reduce_sizes(jobs, pool), pool) == best_answers(jobs, pool)


def places_with_and_without(jobs: Sequence[ScaleValues], pool: int) -> tuple[list[int], list[int]]:
    """Places that are chosen after a reduction, and without one."""
    starts = np.cumsum([0, *(len(job.sizes) for job in jobs)], dtype=np.int64)
    sizes, values = np.concatenate([job.sizes for job in jobs]), np.concatenate([job.values for job in jobs])
    currents = np.asarray([job.current for job in jobs], dtype=np.int64)
    after = best_reduced_places(starts, sizes, values, currents, pool)
    return after.tolist(), best_places(starts, sizes, values, currents, pool, TIE).tolist()


@settings(deadline=None, max_examples=300)
@given(jobs=st.lists(a_job(), min_size=1, max_size=5), pool=st.integers(0, 20))
def test_after_a_reduction_the_same_is_chosen_where_many_tie(jobs: list[ScaleValues], pool: int) -> None:
    after, without = places_with_and_without(jobs, pool)
    assert after == without


@settings(deadline=None, max_examples=200)
@given(problem=problems(max_jobs=6).filter(lambda problem: bool(problem.jobs)))
def test_after_a_reduction_the_same_is_chosen_for_any_curve(problem: AllocationProblem) -> None:
    after, without = places_with_and_without([scale_values(job, problem) for job in problem.jobs], len(problem.nodes))
    assert after == without


def test_where_the_price_is_clear_little_is_kept() -> None:
    nodes = tuple(f"n{index}" for index in range(40))
    curve = tuple(ScalingPoint(size, 100.0 * size**0.8) for size in range(1, 41))
    jobs = tuple(JobDemand(f"j{index}", 1, 40, curve, weight=1 + index / 10) for index in range(8))
    problem = AllocationProblem(nodes, 120.0, jobs)
    slim = reduce_sizes([scale_values(job, problem) for job in jobs], 40)
    assert sum(len(scales.sizes) for scales in slim) < 8 * 41 / 4
