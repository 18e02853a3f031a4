from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.idle_trace import Fragment, Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.traces.describe import HAZARD_WINDOW_S, describe
from tests.scavenger.traces import traces
from tests.support.shared import shared_path


@pytest.fixture(scope="module")
def summit() -> Trace:
    return read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))


def idle_nodes(trace: Trace, second: int) -> frozenset[str]:
    return frozenset(entry.node for entry in trace.fragments if entry.idle_from_s <= second < entry.idle_until_s)


@given(trace=traces(), start_s=st.integers(0, 40), duration_s=st.integers(1, 90), cut=st.booleans())
def test_figures_agree_with_counting_second_by_second(trace: Trace, start_s: int, duration_s: int, cut: bool) -> None:
    piece = window(trace, start_s, duration_s, cut_end=cut)
    found = describe(piece)
    sets = [idle_nodes(piece, second) for second in range(duration_s)]
    changes = list(itertools.pairwise(sets))
    idle_s = sum(len(nodes) for nodes in sets)
    assert found.events == sum(before != after for before, after in changes)
    assert found.join_events == sum(bool(after - before) for before, after in changes)
    assert found.leave_events == sum(bool(before - after) for before, after in changes)
    assert found.inc_per_hour == pytest.approx(found.join_events / duration_s * 3600)
    assert found.resource_integral_node_hours == pytest.approx(idle_s / 3600)
    assert found.equivalent_nodes == pytest.approx(idle_s / duration_s)
    assert found.idle_ratio == pytest.approx(idle_s / duration_s / len(piece.nodes))
    inside = [min(entry.idle_until_s, duration_s) - max(entry.idle_from_s, 0) for entry in piece.fragments]
    assert found.fragments == len(inside)
    for point in found.fragment_shares:
        short = [length for length in inside if length < point.shorter_than_s]
        assert point.fragments == pytest.approx(len(short) / len(inside) if inside else 0)
        assert point.node_time == pytest.approx(sum(short) / sum(inside) if inside else 0)


def test_joins_and_leaves_at_one_instant_are_one_event() -> None:
    trace = Trace((Fragment("a", 0, 50), Fragment("b", 50, 90), Fragment("c", 50, 200)), ("a", "b", "c"), 100.0)
    found = describe(trace)
    assert (found.events, found.join_events, found.leave_events) == (2, 1, 2)
    assert [(point.shorter_than_s, point.gaps) for point in found.event_gap_shares][:3] == [(10, 0), (30, 0), (60, 1)]


def test_hazards_leave_out_what_is_not_known() -> None:
    trace = Trace(
        (
            Fragment("old", 0, 100),  # May have begun long before.
            Fragment("short", 10, 40),
            Fragment("gone", 10, 100),
            Fragment("stays", 20, 900),
            Fragment("late", 895, 1000),  # What came 120 s on is not known.
        ),
        ("old", "short", "gone", "stays", "late"),
        1000.0,
    )
    by_age = {hazard.age_s: hazard for hazard in describe(trace).hazards}
    assert by_age[0].fragments == 3
    assert by_age[0].gone == pytest.approx(2 / 3)
    assert (by_age[60].fragments, by_age[60].gone) == (2, 0.5)
    assert (by_age[3600].fragments, by_age[3600].gone) == (0, None)
    assert HAZARD_WINDOW_S == 120


def test_a_trace_in_which_nothing_is_idle() -> None:
    found = describe(Trace((), ("a",), 3600.0))
    assert (found.events, found.idle_ratio, found.short_fragments, found.event_gap_shares) == (0, 0, 0, ())


def test_a_week_on_summit(summit: Trace) -> None:
    found = describe(summit)
    assert found.short_fragments == pytest.approx(0.584, abs=0.001)
    assert found.short_node_time == pytest.approx(0.121, abs=0.001)
    hazards = {hazard.age_s: hazard.gone for hazard in found.hazards}
    assert hazards[60] == pytest.approx(0.319, abs=0.001)
    # 7.6 % if the fragments that the end of the log cuts off counted as gone.
    assert hazards[1800] == pytest.approx(0.0733, abs=0.001)
    assert (round(found.inc_per_hour, 1), round(found.dec_per_hour, 1)) == (43.8, 32.5)
    first = describe(window(summit, 0, 168 * 3600, 1024))
    assert first.resource_integral_node_hours == pytest.approx(14_296, rel=1e-4)
    assert first.equivalent_nodes == pytest.approx(85.09, abs=0.01)
