"""The scale that a plan would give a job, compared with trying all plans."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.profiler.machine.profiling_policy import best_scale, rest_values


@given(
    st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=4), max_size=3),
    st.lists(st.floats(0, 100), min_size=4, max_size=4),
    st.integers(0, 6),
)
def test_the_chosen_scale_is_as_good_as_the_best_of_all_plans(
    others: list[list[float]], own: list[float], pool: int
) -> None:
    curves = [[0.0, *values] for values in others]
    scales = (1, 2, 4)
    rest = rest_values(curves, pool)
    chosen = best_scale(lambda n: own[n - 1], scales, rest)
    best = max(
        (0.0 if scale == 0 else own[scale - 1]) + sum(curve[n] for curve, n in zip(curves, counts, strict=True))
        for scale in (0, *scales)
        for counts in itertools.product(*(range(len(curve)) for curve in curves))
        if scale + sum(counts) <= pool
    )
    found = (0.0 if chosen == 0 else own[chosen - 1]) + rest[pool - chosen]
    assert found == pytest.approx(best)
