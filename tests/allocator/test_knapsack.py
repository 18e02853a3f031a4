"""The compiled knapsack against exhaustive search, also with sizes that must not be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.solvers.choice_table import best_of
from malletrain.allocator.solvers.knapsack import TIE, best_places

NEVER = float("-inf")
Job = tuple[list[int], list[float], int]
"""Sizes with 0 first, the value of each, and the present size."""


@st.composite
def jobs_to_fit(draw: st.DrawFn) -> Job:
    """Values that often tie, and some that must never be chosen; 0 nodes always may be."""
    sizes = [0, *draw(st.lists(st.integers(1, 7), max_size=4, unique=True).map(sorted))]
    whole = st.integers(-3, 4).map(float)
    others = st.one_of(whole, st.just(NEVER), st.floats(-1e6, 1e6))
    return sizes, [draw(whole), *(draw(others) for _ in sizes[1:])], draw(st.integers(0, 8))


def flat(jobs: Sequence[Job]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    starts = np.cumsum([0, *(len(sizes) for sizes, _, _ in jobs)], dtype=np.int64)
    sizes = np.asarray([size for sizes, _, _ in jobs for size in sizes], dtype=np.int64)
    values = np.asarray([value for _, values, _ in jobs for value in values], dtype=np.float64)
    return starts, sizes, values, np.asarray([current for _, _, current in jobs], dtype=np.int64)


def best_total(jobs: Sequence[Job], pool: int) -> float:
    """By exhaustive search."""
    totals = [
        sum(jobs[index][1][place] for index, place in enumerate(places))
        for places in product(*(range(len(sizes)) for sizes, _, _ in jobs))
        if sum(jobs[index][0][place] for index, place in enumerate(places)) <= pool
    ]
    return max(totals)


@settings(deadline=None, max_examples=400)
@given(jobs=st.lists(jobs_to_fit(), max_size=4), pool=st.integers(0, 20))
def test_the_best_places_are_the_best_there_are(jobs: list[Job], pool: int) -> None:
    starts, sizes, values, currents = flat(jobs)
    places = best_places(starts, sizes, values, currents, pool, TIE)
    assert all(starts[job] <= place < starts[job + 1] for job, place in enumerate(places))
    assert sizes[places].sum() <= pool
    best = best_total(jobs, pool)
    largest = max([1.0, *(abs(value) for value in values if np.isfinite(value))])
    assert abs(values[places].sum() - best) <= 1e-11 * len(jobs) * largest + 1e-12


@settings(deadline=None, max_examples=150)
@given(job=jobs_to_fit(), copies=st.integers(1, 4), pool=st.integers(0, 25))
def test_a_size_worth_minus_infinity_is_never_chosen(job: Job, copies: int, pool: int) -> None:
    starts, sizes, values, currents = flat([job] * copies)
    assert np.isfinite(values[best_places(starts, sizes, values, currents, pool, TIE)]).all()


def test_nobody_and_nothing() -> None:
    empty = np.zeros(0, np.int64)
    assert best_places(np.zeros(1, np.int64), empty, np.zeros(0), empty, 5, TIE).tolist() == []
    starts, sizes, values, currents = flat([([0, 1], [0.0, 9.0], 0)])
    assert best_places(starts, sizes, values, currents, 0, TIE).tolist() == [0]


def test_large_problems_with_sizes_out_of_reach_are_solved_the_same_with_and_without_leaving_sizes_out() -> None:
    rng = np.random.default_rng(5)
    sizes = list(range(65))
    jobs: list[Job] = []
    for _ in range(40):
        rate = np.cumsum(rng.uniform(0.2, 1.0, 65)) * rng.uniform(1, 7)
        values = [0.0, *(value if size % 9 else NEVER for size, value in enumerate(rate[1:].tolist(), 1))]
        jobs.append((sizes, values, int(rng.integers(0, 64))))
    starts, flat_sizes, values_of_all, currents = flat(jobs)
    pool = 500  # 2600 sizes x 500 nodes: enough for sizes to be left out first
    slim = best_of(starts, flat_sizes, values_of_all, currents, pool)
    whole = best_places(starts, flat_sizes, values_of_all, currents, pool, TIE)
    assert slim.tolist() == whole.tolist()
    assert np.isfinite(values_of_all[slim]).all()
