from __future__ import annotations

import os
from pathlib import Path

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace, window
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import NodeSource
from malletrain.scavenger.sources.build import build_source, past_lengths
from malletrain.scavenger.sources.trace import StaticSource, TraceSource
from malletrain.scavenger.state_file import STATE_FILE, ScavengerStateFile
from malletrain.scavenger.trace_files import write_trace
from tests.scavenger.traces import traces
from tests.support.clocks import ManualClock

ORIGIN = 1_000_000.0
SMALL = Trace(
    (Fragment("a", -40, 20), Fragment("b", 10, 50), Fragment("c", 20, 200), Fragment("a", 60, 80)),
    ("a", "b", "c"),
    100.0,
    -40.0,
)


def replay(trace: Trace, clock: ManualClock, speed: float) -> TraceSource:
    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    return TraceSource(trace, clock, ORIGIN, speed, sleep)


async def collect(source: NodeSource) -> list[Observation]:
    return [observation async for observation in source.observations()]


async def test_a_trace_is_told_in_wall_clock_seconds() -> None:
    seen = await collect(replay(SMALL, ManualClock(ORIGIN), speed=10))
    a, b, c = ORIGIN - 4, ORIGIN + 1, ORIGIN + 2
    assert seen == [
        Observation(ORIGIN, {"a": a}),
        Observation(ORIGIN + 1, {"a": a, "b": b}),
        Observation(ORIGIN + 2, {"b": b, "c": c}),
        Observation(ORIGIN + 5, {"c": c}),
        Observation(ORIGIN + 6, {"c": c, "a": ORIGIN + 6}),
        Observation(ORIGIN + 8, {"c": c}),
        Observation(ORIGIN + 10, {"c": c}, ended=True),
    ]


async def test_a_restart_goes_on_at_the_right_second() -> None:
    source = replay(SMALL, ManualClock(ORIGIN + 5.5), speed=10)
    assert source.past_lengths() == [6, 4]
    seen = await collect(source)
    assert seen[0] == Observation(ORIGIN + 5.5, {"c": ORIGIN + 2})
    assert [observation.time - ORIGIN for observation in seen] == [5.5, 6, 8, 10]


async def test_after_the_end_the_last_picture_stays() -> None:
    source = replay(SMALL, ManualClock(ORIGIN + 5000), speed=10)
    assert await collect(source) == [Observation(ORIGIN + 10, {"c": ORIGIN + 2}, ended=True)]
    assert source.past_lengths() == [6, 4, 2], "what ends after the trace's end is the future"


@given(trace=traces(), start=st.integers(0, 60), duration=st.integers(1, 60), late=st.integers(0, 70))
async def test_every_observation_is_what_the_trace_says(trace: Trace, start: int, duration: int, late: int) -> None:
    piece = window(trace, start, duration)
    seen = await collect(replay(piece, ManualClock(ORIGIN + late / 2), speed=2))
    times = [observation.time for observation in seen]
    assert times == sorted(set(times))
    assert [observation.ended for observation in seen] == [False] * (len(seen) - 1) + [True]
    for observation in seen:
        second = (observation.time - ORIGIN) * 2
        assert observation.idle == {
            entry.node: ORIGIN + entry.idle_from_s / 2
            for entry in piece.fragments
            if entry.idle_from_s <= second < entry.idle_until_s
        }
    inner = {time for entry in piece.fragments for time in (entry.idle_from_s, entry.idle_until_s)}
    expected = {ORIGIN + time / 2 for time in inner if late < time < duration}
    assert set(times) - {times[0], times[-1]} == expected - {times[0], times[-1]}


async def test_static_nodes_are_idle_from_the_start() -> None:
    source = StaticSource(["b", "a"], ManualClock(5))
    assert await collect(source) == [Observation(5, {"b": 5, "a": 5})]
    assert (source.order(), source.past_lengths()) == (("b", "a"), ())


def trace_settings(folder: Path, **changes: object) -> ScavengerSettings:
    path = folder / "t.csv"
    if not path.exists():
        write_trace(SMALL, path)
    return ScavengerSettings.model_validate({"source": "trace", "trace": path, "speed": 10, **changes})


def build(section: ScavengerSettings, folder: Path, now: float) -> NodeSource:
    return build_source(section, Settings(state_dir=folder), ScavengerStateFile(folder), ManualClock(now))


async def first_idle(section: ScavengerSettings, folder: Path, now: float) -> dict[str, float]:
    async for observation in build(section, folder, now).observations():
        return {name: now - since for name, since in observation.idle.items()}
    raise AssertionError("no observation")


async def test_after_a_kill_the_replay_goes_on_and_after_a_good_end_it_begins_anew(tmp_path: Path) -> None:
    section = trace_settings(tmp_path)
    assert await first_idle(section, tmp_path, ORIGIN) == {"a": 4}
    assert await first_idle(section, tmp_path, ORIGIN + 3) == {"b": 2, "c": 1}
    await build(section, tmp_path, ORIGIN + 4).close()
    assert await first_idle(section, tmp_path, ORIGIN + 7) == {"a": 4}


@pytest.mark.parametrize(
    "changes", [{"speed": 5}, {"start_s": 1}, {"duration_s": 90}, {"trace_nodes": 2}, {"resume": False}]
)
def test_another_replay_begins_anew(tmp_path: Path, changes: dict[str, object]) -> None:
    build(trace_settings(tmp_path), tmp_path, ORIGIN)
    before = (tmp_path / STATE_FILE).read_text()
    build(trace_settings(tmp_path), tmp_path, ORIGIN + 1)
    assert (tmp_path / STATE_FILE).read_text() == before
    source = build(trace_settings(tmp_path, **changes), tmp_path, ORIGIN + 1)
    assert (tmp_path / STATE_FILE).read_text() != before
    assert source.past_lengths() == []


def test_a_trace_that_was_changed_begins_anew(tmp_path: Path) -> None:
    section = trace_settings(tmp_path)
    build(section, tmp_path, ORIGIN)
    before = (tmp_path / STATE_FILE).read_text()
    os.utime(tmp_path / "t.csv", (1, 1))
    build(section, tmp_path, ORIGIN + 1)
    assert (tmp_path / STATE_FILE).read_text() != before


@pytest.mark.parametrize("content", ["", "[]", '{"key": 1', '{"origin_unix_seconds": "x"}', "\x00"])
async def test_a_broken_origin_file_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE_FILE).write_text(content)
    section = trace_settings(tmp_path)
    assert await first_idle(section, tmp_path, ORIGIN) == {"a": 4}
    assert await first_idle(section, tmp_path, ORIGIN + 3) == {"b": 2, "c": 1}


async def test_a_part_of_a_trace_is_replayed(tmp_path: Path) -> None:
    section = trace_settings(tmp_path, start_s=15, duration_s=30, trace_nodes=2)
    source = build(section, tmp_path, ORIGIN)
    assert source.order() == ("a", "b")
    assert await first_idle(section, tmp_path, ORIGIN) == {"a": 5.5, "b": 0.5}
    assert await first_idle(section, tmp_path, ORIGIN + 9) == {"b": 9.5}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trace": None}, "scavenger.trace"),
        ({"start_s": 100}, "scavenger.start_s"),
        ({"trace_nodes": 4}, "scavenger.trace_nodes"),
        ({"source": "static", "nodes": []}, "scavenger.nodes"),
    ],
)
def test_settings_that_can_not_work_are_named(tmp_path: Path, changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        build(trace_settings(tmp_path, **changes), tmp_path, ORIGIN)
    assert caught.value.field == field


def test_a_state_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="state_dir: expected a folder that can be written to"):
        build(trace_settings(tmp_path), tmp_path / "missing", ORIGIN)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": ["a", "b", "a"]},
        {"nodes": ["a", ""]},
        {"speed": 0},
        {"speed": float("nan")},
        {"debounce_seconds": -1},
        {"source": "lsf"},
        {"speeed": 1},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError):
        ScavengerSettings.model_validate(wrong)


def test_history_is_sped_up_like_the_trace(tmp_path: Path) -> None:
    section = trace_settings(tmp_path)
    history = window(SMALL, 5, 100)
    write_trace(history, tmp_path / "h.csv")
    assert past_lengths(section) == []
    section = section.model_copy(update={"history_path": tmp_path / "h.csv"})
    assert past_lengths(section) == [6, 4, 2, 18]
    assert past_lengths(section.model_copy(update={"source": "static"})) == [60, 40, 20, 180]


def test_a_trace_that_is_not_there_names_the_setting(tmp_path: Path) -> None:
    missing = tmp_path / "none.csv"
    with pytest.raises(InvalidInputError, match=r"scavenger\.trace: expected the path of a trace that is there"):
        build(ScavengerSettings(source="trace", trace=missing), tmp_path, ORIGIN)
    with pytest.raises(InvalidInputError, match=r"scavenger\.history_path"):
        past_lengths(ScavengerSettings(source="static", nodes=("a",), history_path=missing))
