"""Settings are compared for as long as there is work with all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.tuning.trials import (
    DayOutcome,
    TunedSettings,
    TuningDay,
    replay_alike,
    replay_day,
    replay_day_with_services,
    try_settings,
)
from tests.simulator.replay.builders import Case, idle, trainer

DAY_S = 86400.0
FEW = TunedSettings(ForwardPolicy.CONSTANT, 120.0, 1, 0.05)
MANY = replace(FEW, max_parallel=8)
TRACE = idle({f"n{index}": [(0, DAY_S)] for index in range(8)}, DAY_S)
OPTIONS = ReplayOptions(duration_s=DAY_S)
EVENTS = tuple(Case(TRACE, (), OPTIONS).events())
JOBS = tuple(trainer(f"j{number}", rates=[1.0], samples=3600.0, up_s=0.0, most=1) for number in range(8))
DAY = TuningDay(0.0, DAY_S, TRACE.nodes, EVENTS, JOBS)


def by_fast_engine(day: TuningDay, settings: TunedSettings) -> DayOutcome:
    return replay_day(day, settings, OPTIONS)


def test_who_is_done_early_is_not_waited_for() -> None:
    """All at once are done after an hour, one after the other after eight: both train as much in a day."""
    assert by_fast_engine(DAY, FEW).samples == by_fast_engine(DAY, MANY).samples
    found = try_settings([DAY], [FEW, MANY], by_fast_engine)
    assert found.compared_s == (3600.0,)
    assert found.node_hours == (1.0,)
    assert found.comparison.gains[MANY].mean == pytest.approx(7.0)
    assert found.comparison.recommended == MANY


def test_a_day_with_work_to_its_end_is_compared_as_a_whole() -> None:
    told: list[None] = []
    long = replace(DAY, jobs=(*JOBS, trainer("long", rates=[1.0], samples=1e9, most=1)))
    day, found = replay_alike(long, [FEW, MANY], by_fast_engine, lambda: told.append(None))
    assert day is long
    assert [outcome.work_ended_s for outcome in found.values()] == [None, None]
    assert len(told) == 2


def test_both_engines_say_when_the_work_ended() -> None:
    fast, services = (replay(DAY, MANY, OPTIONS).work_ended_s for replay in (replay_day, replay_day_with_services))
    assert fast == 3600.0
    assert services == pytest.approx(3600.0, abs=1.0)
