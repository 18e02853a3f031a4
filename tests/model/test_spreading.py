"""What a job loses by spreading, from rates at equal numbers of nodes."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from malletrain.model.spreading import SpanRate, SpreadLoss, loss_in_words, spread_losses
from malletrain.model.topology import shared_levels


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([], 0),
        ([("row1", "rack1")], 2),
        ([("row1", "rack1"), ("row1", "rack1")], 2),
        ([("row1", "rack1"), ("row1", "rack2"), ("row1", "rack1")], 1),
        ([("row1", "rack1"), ("row2", "rack1")], 0),
        ([("row1", "rack1"), ("row1",)], 1),
        ([("row1", "rack1"), ()], None),
        ([(), ()], None),
    ],
)
def test_levels_that_nodes_share(paths: list[tuple[str, ...]], expected: int | None) -> None:
    assert shared_levels(paths) == expected


def test_shared_levels_are_those_of_a_comparison_of_all_pairs() -> None:
    source = random.Random(1)
    for _ in range(500):
        paths = [tuple(source.choices("ab", k=source.randint(1, 4))) for _ in range(source.randint(1, 5))]
        longest = max(
            level
            for level in range(5)
            if all(len(path) >= level and path[:level] == paths[0][:level] for path in paths)
        )
        assert shared_levels(paths) == longest


def test_a_loss_is_that_of_equal_numbers_of_nodes() -> None:
    rates = [
        SpanRate(2, 2, 200.0, 0.02),
        SpanRate(2, 1, 180.0, 0.02),
        SpanRate(4, 2, 400.0, 0.02),
        SpanRate(4, 1, 360.0, 0.02),
        SpanRate(8, 1, 500.0, 0.02),  # nowhere else
        SpanRate(8, 0, 400.0, 0.02),
    ]
    across_rows, across_racks = spread_losses(rates)
    assert across_racks.nodes == (2, 4)
    assert (across_racks.shared_levels, across_racks.near_levels) == (1, 2)
    assert across_racks.loss == pytest.approx(0.1)
    assert across_racks.error == pytest.approx(0.9 * 0.02, rel=1e-9)  # two comparisons of two rates each
    assert (across_rows.shared_levels, across_rows.near_levels, across_rows.nodes) == (0, 1, (8,))
    assert across_rows.loss == pytest.approx(0.2)
    assert loss_in_words(across_racks) == (
        "in several groups of level 2 10.0 % slower (±1.8 %) than in one group of level 2, at 2 and 4 nodes"
    )


def test_what_is_hardly_known_is_not_compared() -> None:
    assert spread_losses([SpanRate(2, 2, 200.0, 0.02), SpanRate(2, 1, 100.0, 0.3)]) == ()
    assert spread_losses([SpanRate(2, 2, 200.0, 0.02), SpanRate(4, 1, 300.0, 0.02)]) == ()
    assert spread_losses([]) == ()


def test_losses_that_differ_more_than_their_errors_explain_are_less_certain() -> None:
    def loss(second: float) -> SpreadLoss:
        return spread_losses(
            [
                SpanRate(2, 1, 100.0, 0.01),
                SpanRate(2, 0, 90.0, 0.01),
                SpanRate(4, 1, 200.0, 0.01),
                SpanRate(4, 0, second, 0.01),
            ]
        )[0]

    alike, unlike = loss(180.0), loss(120.0)
    assert alike.loss == pytest.approx(0.1)
    assert unlike.error > 10 * alike.error
    assert 0.1 < unlike.loss < 0.4


def test_the_interval_holds_the_true_loss_about_as_often_as_it_says() -> None:
    source = random.Random(3)

    def holds() -> bool:
        rates = [
            SpanRate(nodes, level, 100.0 * nodes * share * source.gauss(1.0, 0.02), 1.96 * 0.02)
            for nodes in (2, 4, 8)
            for level, share in ((1, 1.0), (0, 0.85))
        ]
        (found,) = spread_losses(rates)
        return abs(found.loss - 0.15) <= found.error

    assert fmean(holds() for _ in range(1000)) > 0.93
