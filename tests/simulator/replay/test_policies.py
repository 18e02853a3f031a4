"""Counts of the two simple policies, and the published code's limit of a step."""

from __future__ import annotations

import pytest

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.simulator.replay.fast_engine import equal_counts, fixed_counts
from malletrain.simulator.replay.options import Accounting, ReplayOptions
from tests.simulator.replay.builders import STAYS, Case, idle, trainer


@pytest.mark.parametrize(
    ("bounds", "pool", "expected", "with_quirks"),
    [
        ([], 5, [], []),
        ([(1, 64)], 0, [0], [0]),
        ([(1, 64)] * 3, 9, [3, 3, 3], [3, 3, 3]),
        ([(1, 64)] * 3, 11, [5, 3, 3], [5, 3, 3]),  # the rest goes to the first
        ([(1, 4)] * 3, 20, [4, 4, 4], [4, 4, 4]),
        ([(1, 4), (1, 64)], 10, [4, 6], [4, 6]),  # what the first can't use, the second can
        ([(1, 64)] * 3, 2, [2, 0, 0], [2, 0, 0]),  # a share of 0
        ([(1, 64)] * 3, 3, [1, 1, 1], [3, 0, 0]),  # the share equals the minimum
        ([(1, 2)] * 3, 3, [1, 1, 1], [2, 1, 0]),
        ([(2, 8)] * 2, 4, [2, 2], [4, 0]),
        ([(2, 8)] * 2, 5, [3, 2], [5, 0]),
        ([(4, 8)] * 2, 7, [7, 0], [7, 0]),  # too few for each, enough for one
        ([(4, 8), (1, 8)], 3, [0, 3], [0, 3]),
        ([(4, 0), (1, 8)], 12, [0, 8], [0, 8]),  # one that can't run at all
    ],
)
def test_equal_shares_and_the_rest_to_who_came_first(
    bounds: list[tuple[int, int]], pool: int, expected: list[int], with_quirks: list[int]
) -> None:
    assert equal_counts(bounds, pool) == expected
    assert equal_counts(bounds, pool, paper_quirks=True) == with_quirks


@pytest.mark.parametrize(
    ("jobs", "pool", "expected"),
    [
        ([], 4, []),
        ([(0, False, 4), (0, False, 4)], 7, [4, 0]),
        ([(0, False, 4), (0, False, 3)], 7, [4, 3]),
        ([(0, False, 8), (0, False, 3)], 7, [0, 3]),  # who fits may pass who does not
        ([(0, False, 4), (4, False, 4)], 7, [0, 4]),  # who runs keeps running
        ([(3, True, 4), (0, False, 4)], 7, [0, 4]),  # who lost a node is killed, and starts again later
        ([(3, True, 4)], 7, [0]),
        ([(0, False, 0)], 7, [0]),
    ],
)
def test_exact_size_or_nothing(jobs: list[tuple[int, bool, int]], pool: int, expected: list[int]) -> None:
    assert fixed_counts(jobs, pool) == expected


@pytest.mark.parametrize(("pool", "first_step"), [(1, 1), (2, 1), (3, 2), (7, 4), (8, 4), (9, 5)])
def test_the_published_code_changes_a_job_by_half_of_the_nodes_at_a_time(pool: int, first_step: int) -> None:
    fragments = {f"n{index}": [(0.0, STAYS)] for index in range(pool)}
    trace = idle({**fragments, "late": [(50.0, STAYS)]})
    job = trainer(rates=[float(nodes) for nodes in range(1, 20)])
    options = ReplayOptions(
        duration_s=100.0, cost_model=CostModel.PAPER, accounting=Accounting.PAPER, paper_quirks=True
    )
    used = Case(trace, (job,), options).run_replay().decisions["used"].tolist()
    assert used == [first_step, min(pool + 1, first_step + (pool + 2) // 2)]
