"""A replay in slices of time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.simulator.replay.node_events import node_events, resource_integral
from malletrain.simulator.replay.records import (
    DAY_S,
    HOUR_S,
    MAX_SLICES,
    WEEK_S,
    edges_of,
    idle_node_hours,
    integral_between,
    node_seconds,
    nodes_taken_back,
    slices_of,
    whole_edges,
)
from tests.simulator.replay.builders import idle


@pytest.mark.parametrize(
    ("duration_s", "count", "words"),
    [
        (HOUR_S, 60, "every minute"),
        (DAY_S, 24, "every hour"),
        (WEEK_S, 28, "every six hours"),
        (31 * DAY_S, 31, "every day"),
        (366 * DAY_S, 53, "every week"),
        (3 * 365 * DAY_S, 40, "every four weeks"),
        (56 * 365 * DAY_S, 57, "every 52 weeks"),
    ],
)
def test_a_chart_has_as_many_bars_as_there_is_room_for(duration_s: float, count: int, words: str) -> None:
    slices = slices_of(duration_s)
    assert (len(slices.lengths), slices.words) == (count, words)
    assert slices.edges[-1] == duration_s


@given(st.floats(1.0, 1e11))
def test_any_length_is_covered(duration_s: float) -> None:
    slices = slices_of(duration_s)
    assert 1 <= len(slices.lengths) <= MAX_SLICES + 1
    assert slices.lengths.sum() == pytest.approx(duration_s)
    assert (slices.lengths > 0).all()


def test_the_last_slice_may_be_shorter_and_blocks_are_whole() -> None:
    assert edges_of(10.0, 4.0).tolist() == [0.0, 4.0, 8.0, 10.0]
    assert edges_of(8.0, 4.0).tolist() == [0.0, 4.0, 8.0]
    assert whole_edges(10.0, 4.0).tolist() == [0.0, 4.0, 8.0]
    assert whole_edges(8.0, 4.0).tolist() == [0.0, 4.0, 8.0]


def test_an_integral_holds_until_the_last_edge_and_is_nothing_before_the_first_value() -> None:
    assert integral_between([2.0, 4.0], [3.0, 1.0], [0.0, 3.0, 6.0]).tolist() == [3.0, 5.0]
    assert integral_between([], [], [0.0, 1.0, 2.0]).tolist() == [0.0, 0.0]
    assert integral_between([5.0], [2.0], [0.0, 1.0]).tolist() == [0.0]


@given(st.lists(st.tuples(st.floats(0.0, 90.0), st.floats(0.5, 50.0)), min_size=1, max_size=6))
def test_node_hours_of_slices_add_up_to_the_resource_integral(spans: list[tuple[float, float]]) -> None:
    trace = idle({f"n{place}": [(begin, begin + length)] for place, (begin, length) in enumerate(spans)})
    events = node_events(trace, 100.0)
    slices = np.linspace(0.0, 100.0, 8)
    assert idle_node_hours(events, slices).sum() == pytest.approx(resource_integral(events, 100.0))
    left = sum(len(event.left) for event in events)
    assert nodes_taken_back(events, slices).sum() == left


def test_node_seconds_know_when_a_node_came_and_went() -> None:
    trace = replace(idle({"a": [], "b": [(0.0, 1.0)]}), present_s={"a": (20.0, 60.0)})
    assert node_seconds(trace, [0.0, 50.0, 100.0]).tolist() == [80.0, 60.0]
    assert node_seconds(trace, [0.0, 100.0]).sum() == trace.node_s
