"""Rows of numbers as lines of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli.jobs.metrics import ASCII_LEVELS, BLOCKS, history_facts, levels_of, sparkline
from malletrain.v1 import monitor_pb2


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([5.0], "▁"),
        ([2.0, 2.0, 2.0], "▁▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([1e308, -1e308, 0.0], "█▁▅"),
    ],
)
def test_the_least_number_is_lowest_and_the_greatest_highest(values: list[float], line: str) -> None:
    assert sparkline(values) == line


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50))
def test_any_finite_numbers_are_a_character_each(values: list[float]) -> None:
    for levels in (BLOCKS, ASCII_LEVELS):
        line = sparkline(values, levels)
        assert len(line) == len(values)
        assert set(line) <= set(levels)


@pytest.mark.parametrize(
    ("encoding", "levels"),
    [
        ("utf-8", BLOCKS),
        ("ascii", ASCII_LEVELS),
        ("latin-1", ASCII_LEVELS),
        ("none", ASCII_LEVELS),
        (None, ASCII_LEVELS),
    ],
)
def test_a_terminal_without_blocks_gets_ascii(encoding: str | None, levels: str) -> None:
    assert levels_of(encoding) == levels


def test_a_script_can_not_put_a_metric_in_place_of_another_row() -> None:
    points = [monitor_pb2.MetricPoint(step=number, value=1 / number) for number in (1, 2000)]
    histories = [monitor_pb2.MetricHistory(name=name, points=points) for name in ("loss", "owner")]
    found = history_facts([*histories, monitor_pb2.MetricHistory(name="none")], ("owner",))
    assert list(found) == ["loss", "metric owner"]
    assert found["loss"].startswith("0.0005 at step 2,000  ")
