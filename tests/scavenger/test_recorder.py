from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.idle_trace import Fragment, FragmentRecorder
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.trace_files import read_trace, write_trace


def recorded(*pictures: tuple[float, Mapping[str, float]], stale: tuple[float, ...] = ()) -> FragmentRecorder:
    recorder = FragmentRecorder()
    for time, idle in pictures:
        recorder.observe(Observation(time, idle, known=frozenset({"z"}), stale=time in stale))
    return recorder


def test_fragments_begin_and_end_with_pictures() -> None:
    recorder = recorded(
        (1000, {"a": 900, "b": 1000}),
        (1002, {"a": 900}),
        (1004, {"a": 900, "b": 1004}),
        (1006, {"a": 1006, "b": 1004}),
        (1010, {"b": 1004}),
    )
    trace = recorder.trace()
    assert trace is not None
    assert trace.fragments == (
        Fragment("a", 0, 6),
        Fragment("b", 0, 2),
        Fragment("b", 4, 10),
        Fragment("a", 6, 10),
    )
    assert trace.nodes == ("a", "b", "z")
    assert trace.duration_s == 10
    assert trace.origin == "1970-01-01T00:16:40+00:00"
    assert (recorder.idle, recorder.known) == (1, 3)


def test_silence_is_not_idleness() -> None:
    recorder = recorded((0, {"a": 0, "b": 0}), (10, {"a": 0, "b": 0}), (500, {}), (600, {"a": 0}), stale=(500,))
    trace = recorder.trace()
    assert trace is not None
    assert trace.fragments == (Fragment("a", 0, 600), Fragment("b", 0, 10))


def test_nothing_seen_is_no_trace() -> None:
    assert FragmentRecorder().trace() is None
    assert recorded((5, {"a": 5})).trace() is None


@given(pictures=st.lists(st.tuples(st.integers(1, 100), st.sets(st.sampled_from("abc"))), min_size=2, max_size=15))
def test_what_is_recorded_can_be_read_again(
    pictures: list[tuple[int, set[str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    recorder = FragmentRecorder()
    now, since = 0.0, dict[str, float]()
    for gap, names in pictures:
        now += gap
        since = {name: since.get(name, now) for name in sorted(names)}
        recorder.observe(Observation(now, since))
    trace = recorder.trace()
    assert trace is not None
    if not trace.fragments:
        return
    folder = tmp_path_factory.getbasetemp()
    write_trace(trace, folder / "r.csv")
    assert read_trace(folder / "r.csv").fragments == trace.fragments
