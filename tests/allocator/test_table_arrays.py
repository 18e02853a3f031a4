"""Operations on whole arrays give what the compiled loops give, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.solvers import choice_table, knapsack, owner_knapsack, table_arrays
from tests.allocator.test_knapsack import Job, flat, jobs_to_fit

JOBS = st.lists(jobs_to_fit(), min_size=1, max_size=5)


@settings(deadline=None, max_examples=300)
@given(jobs=JOBS, pool=st.integers(0, 20), tie=st.sampled_from([0.0, 1e-9, 1.0]))
def test_the_tables_of_the_knapsack(jobs: list[Job], pool: int, tie: float) -> None:
    starts, sizes, values, currents = flat(jobs)
    pool = min(pool, sum(job[0][-1] for job in jobs))
    least = knapsack.min_capacities(starts, sizes, pool)
    tables = knapsack.value_tables(starts, sizes, values, least, pool)
    mine = table_arrays.value_tables(starts, sizes, values, least, pool)
    for row, first in enumerate(least):
        assert mine[row, first:].tolist() == tables[row, first:].tolist()
    reached = knapsack.reachable(starts, sizes, values, tables, pool, tie)
    assert (table_arrays.reachable(starts, sizes, values, mine, pool, tie) == reached).all()
    picks = knapsack.first_choices(starts, sizes, values, currents, tables, reached, pool, tie)
    found = table_arrays.first_choices(starts, sizes, values, currents, mine, reached, pool, tie)
    assert found[reached[:-1]].tolist() == picks[reached[:-1]].tolist()


@settings(deadline=None, max_examples=300)
@given(jobs=JOBS, pool=st.integers(0, 20), data=st.data())
def test_the_tables_of_owners(jobs: list[Job], pool: int, data: st.DataObject) -> None:
    starts, sizes, values, _ = flat(jobs)
    costs = np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(sizes), max_size=len(sizes))), dtype=np.int64)
    compiled = owner_knapsack.cost_tables(starts, sizes, values, costs, pool, 1e-9)
    found = table_arrays.cost_tables(starts, sizes, values, costs, pool, 1e-9)
    assert [table.tolist() for table in found] == [table.tolist() for table in compiled]


def test_long_tables_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    starts, sizes = np.arange(0, 41, 10), np.tile(np.arange(10), 4)
    values, costs = rng.integers(0, 5, 40).astype(np.float64), rng.integers(0, 5, 40)
    whole = table_arrays.cost_tables(starts, sizes, values, costs, 30, 1e-9)
    monkeypatch.setattr(table_arrays, "MAX_CELLS", 25)
    parts = table_arrays.cost_tables(starts, sizes, values, costs, 30, 1e-9)
    assert [table.tolist() for table in parts] == [table.tolist() for table in whole]


@settings(deadline=None, max_examples=300)
@given(jobs=JOBS, paper=st.booleans(), most=st.integers(0, 9), data=st.data())
def test_the_values_of_scales(jobs: list[Job], paper: bool, most: int, data: st.DataObject) -> None:
    starts, sizes, _, currents = flat(jobs)

    def draw(count: int, *more: float) -> Any:
        number = st.one_of(st.floats(0, 1e4), st.sampled_from([0.0, *more]))
        return np.array(data.draw(st.lists(number, min_size=count, max_size=count)), dtype=np.float64)

    held = data.draw(st.lists(st.integers(1, 9), min_size=len(jobs), max_size=len(jobs)))
    held_starts = np.cumsum([0, *held], dtype=np.int64)
    stalls = draw(len(sizes), float("nan")) if data.draw(st.booleans()) else np.zeros(0)
    seconds = [draw(len(jobs)) for _ in range(3)]
    arguments: list[Any] = [starts, sizes, draw(len(sizes)), held_starts, draw(int(held_starts[-1])), *seconds]
    arguments += [currents, 120.0, 118.8, paper, most, stalls]
    np.testing.assert_array_equal(table_arrays.values_of_scales(*arguments), choice_table.values_of_scales(*arguments))
