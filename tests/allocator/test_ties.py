"""Ties: fewest changed jobs, then fewest nodes, then the larger size for the earlier job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.objective import ScaleValues
from malletrain.allocator.solvers.choice_table import best_counts


def job_of(values: Sequence[float], current: int = 0, sizes: Sequence[int] | None = None) -> ScaleValues:
    chosen = np.asarray(range(len(values)) if sizes is None else sizes, dtype=np.int64)
    return ScaleValues(chosen, np.asarray(values, dtype=np.float64), np.zeros(len(values)), current)


@st.composite
def a_job(draw: st.DrawFn) -> ScaleValues:
    """A job with few different whole values, so that ties are frequent; its present size may not be permitted."""
    sizes = draw(st.lists(st.integers(1, 7), max_size=4, unique=True).map(sorted))
    values = draw(st.lists(st.integers(-1, 3), min_size=len(sizes) + 1, max_size=len(sizes) + 1))
    return job_of(values, draw(st.integers(0, 8)), [0, *sizes])


def first_of_the_best(jobs: Sequence[ScaleValues], pool: int) -> list[int]:
    """By exhaustive search."""

    def order(indices: Sequence[int]) -> tuple[float, int, int, tuple[int, ...]]:
        counts = [int(job.sizes[index]) for job, index in zip(jobs, indices, strict=True)]
        value = sum(float(job.values[index]) for job, index in zip(jobs, indices, strict=True))
        changed = sum(count != job.current for job, count in zip(jobs, counts, strict=True))
        return -value, changed, sum(counts), tuple(-count for count in counts)

    possible = (
        indices
        for indices in product(*(range(len(job.sizes)) for job in jobs))
        if sum(int(job.sizes[index]) for job, index in zip(jobs, indices, strict=True)) <= pool
    )
    best = min(possible, key=order)
    return [int(job.sizes[index]) for job, index in zip(jobs, best, strict=True)]


@settings(deadline=None, max_examples=300)
@given(jobs=st.lists(a_job(), max_size=4), pool=st.integers(0, 14))
def test_the_order_of_ties_is_the_stated_one(jobs: list[ScaleValues], pool: int) -> None:
    assert best_counts(jobs, pool) == first_of_the_best(jobs, pool)


def test_rounding_does_not_decide() -> None:
    third, twice = 0.1 + 0.2, 0.3  # differ in the last digit
    assert best_counts([job_of([0, twice]), job_of([0, third])], 1) == [1, 0]
    assert best_counts([job_of([0, third]), job_of([0, twice], current=1)], 1) == [0, 1]


def test_a_job_keeps_nodes_that_are_worth_nothing_as_long_as_nobody_wants_them() -> None:
    flat = [0.0, 5.0, 5.0, 5.0]
    assert best_counts([job_of(flat, current=3), job_of([0.0])], 3) == [3, 0]
    assert best_counts([job_of(flat, current=3), job_of([0.0, 1.0])], 3) == [1, 1]


def test_very_many_ties_are_settled_too_and_for_the_earlier_jobs() -> None:
    """More nodes than states are looked at; one job's 64 nodes are worth as much as another's."""
    alike = job_of(np.arange(65.0).tolist())
    counts = best_counts([alike] * 200, 3000)
    assert counts[:46] == [64] * 46
    assert sum(counts) == 3000
    assert sum(count > 0 for count in counts) == 47


def test_where_ties_are_too_many_to_be_looked_at_running_jobs_stay_and_idle_ones_wait() -> None:
    flat = job_of([0.0, *[7.0] * 64], current=5)
    assert best_counts([flat] * 100, 1500) == [5] * 100
    assert best_counts([job_of([0.0] * 65)] * 100, 1500) == [0] * 100
