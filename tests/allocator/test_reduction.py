"""Sizes that are left out are in no best answer, and those that are kept are few."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem import AllocationProblem, JobDemand, ScalingPoint
from malletrain.allocator.reduction import without_hopeless
from malletrain.allocator.worth import Worth, job_worth
from tests.allocator.problems import problems
from tests.allocator.test_ties import worths


def best_answers(jobs: Sequence[Worth], pool: int) -> set[tuple[int, ...]]:
    """Counts of every best answer, by trying everything."""
    found: dict[tuple[int, ...], float] = {}
    for indices in product(*(range(len(job.sizes)) for job in jobs)):
        counts = tuple(int(job.sizes[index]) for job, index in zip(jobs, indices, strict=True))
        if sum(counts) <= pool:
            found[counts] = sum(float(job.values[index]) for job, index in zip(jobs, indices, strict=True))
    best = max(found.values())
    return {counts for counts, value in found.items() if value >= best - 1e-12 * abs(best)}


@settings(deadline=None, max_examples=200)
@given(jobs=st.lists(worths(), min_size=1, max_size=4), pool=st.integers(0, 14))
def test_every_best_answer_stays_where_many_tie(jobs: list[Worth], pool: int) -> None:
    assert best_answers(without_hopeless(jobs, pool), pool) == best_answers(jobs, pool)


@settings(deadline=None, max_examples=100)
@given(problem=problems(most_jobs=3))
def test_every_best_answer_stays_for_any_curve(problem: AllocationProblem) -> None:
    jobs = [job_worth(job, problem) for job in problem.jobs]
    pool = len(problem.nodes)
    assert best_answers(without_hopeless(jobs, pool), pool) == best_answers(jobs, pool)


def test_where_the_price_is_clear_little_is_kept() -> None:
    nodes = tuple(f"n{index}" for index in range(40))
    curve = tuple(ScalingPoint(size, 100.0 * size**0.8) for size in range(1, 41))
    jobs = tuple(JobDemand(f"j{index}", 1, 40, curve, weight=1 + index / 10) for index in range(8))
    problem = AllocationProblem(nodes, 120.0, jobs)
    slim = without_hopeless([job_worth(job, problem) for job in jobs], 40)
    assert sum(len(worth.sizes) for worth in slim) < 8 * 41 / 4
