"""Auto-tuning with the program that really replays, on a past in real databases."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.allocator.auto_tuning.documents import TuningOrder
from malletrain.allocator.auto_tuning.machine import (
    AutoTune,
    ForwardChoice,
    TuningBounds,
    TuningEvent,
    TuningQuestion,
    TuningState,
    decide,
    one_step_from,
)
from malletrain.allocator.auto_tuning.replay_process import ReplayProcess, TuningRunError
from malletrain.allocator.auto_tuning.store import TuningStore
from malletrain.allocator.auto_tuning.tuner import AutoTuner, TunerOptions
from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.history.idle_store import IdleStore
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from tests.cli.test_journal import BEGIN, DAY, HOUR, make_state
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

SHORT = ForwardChoice(ForwardPolicy.CONSTANT, 6.0)
"""Little more than the stall of a start in that past, 5 s."""
ORDER = TuningOrder(TuningQuestion(SHORT, tuple(one_step_from(SHORT))), 6 * 3600.0, 28, 60.0, 1.0)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days, in which one node leaves or joins every ten minutes."""
    return make_state(tmp_path_factory.mktemp("past"), 2)


def add_flapping_hour(folder: Path) -> None:
    """After the past, an hour in which three of the six nodes leave and join every seven seconds."""
    names, begin = ("n3", "n4", "n5"), BEGIN + 2 * DAY
    rows = []
    for turn in range(1, int(HOUR / 7)):
        now = begin + 7 * turn
        joined, left = (dict.fromkeys(names, now), ()) if turn % 2 == 0 else ({}, names)
        rows.append(IdleRow(now, IdleRowKind.CHANGE, joined, left))
    IdleStore(open_database(Settings(state_dir=folder / "state").database("allocator")), 100_000).add(rows)


def program(folder: Path, cpu_seconds: float = 60.0, memory_mib: int = 1024) -> ReplayProcess:
    command = [
        sys.executable,
        "-m",
        "malletrain.cli.operate.tuning_replays",
        "--config",
        str(folder / "malletrain.toml"),
    ]
    return ReplayProcess(command, folder / "state" / "auto_tuning", cpu_seconds, memory_mib)


async def test_a_step_comes_of_a_real_past(past: Path) -> None:
    """The settings are not touched, and nothing of the replays is left."""
    before = (past / "malletrain.toml").read_text()
    store = TuningStore(open_database(Settings(state_dir=past / "state").database("allocator")))
    options = TunerOptions(AutoTune.APPLY, ForwardTime(6.0), TuningBounds(30.0, 960.0), 180.0, 1.0, 6 * 3600.0)
    used: list[ForwardTime] = []
    tuner = AutoTuner(options, store, SystemClock(), program(past).run, used.append, AllocatorMetrics())
    tuner.state = replace(tuner.state, ran_unix=1.0)
    task = asyncio.create_task(tuner.run())
    await wait_until_async(lambda: bool(store.newest(1)), 180)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (run,) = store.newest(9)
    assert run.event is TuningEvent.STEP, run.reason
    assert "in place of 6 s: +" in run.reason
    assert "samples in 48.0 h" in run.reason
    assert "job_manager.max_parallel = 5" in run.reason, "one place only, and four jobs"
    assert used[0] == ForwardTime(6.0)
    assert used[-1] in [ForwardTime(choice.seconds, choice.policy) for choice in one_step_from(SHORT)]
    assert (past / "malletrain.toml").read_text() == before
    assert not (past / "state" / "auto_tuning").exists()


async def test_hours_that_contradict_a_step_take_it_back(tmp_path: Path) -> None:
    """In them nodes leave before the stall of a growth has paid."""
    folder = make_state(tmp_path, 2)
    store = TuningStore(open_database(Settings(state_dir=folder / "state").database("allocator")))
    longer = ForwardChoice(ForwardPolicy.CONSTANT, 30.0)
    options = TunerOptions(AutoTune.APPLY, ForwardTime(6.0), TuningBounds(30.0, 960.0), 1800.0, 1.0, 6 * 3600.0)
    asked = TuningQuestion(SHORT, (longer,))
    answer = await program(folder).run(TuningOrder(asked, 6 * 3600.0, 28, 120.0, 1.0), 120.0)
    stepped = decide(TuningState(SHORT, SHORT), asked, answer, AutoTune.APPLY, BEGIN + 2 * DAY, 1800.0)
    assert stepped.event is TuningEvent.STEP, stepped.reason
    store.add(BEGIN + 2 * DAY, stepped)
    add_flapping_hour(folder)
    used: list[ForwardTime] = []
    clock = ManualClock(BEGIN + 2 * DAY + HOUR)
    tuner = AutoTuner(options, store, clock, program(folder).run, used.append, AllocatorMetrics())
    assert used == [ForwardTime(30.0)]
    task = asyncio.create_task(tuner.run())
    await wait_until_async(lambda: store.newest(1)[0].event is not TuningEvent.STEP, 120)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    run = store.newest(1)[0]
    assert run.event is TuningEvent.WENT_BACK, run.reason
    assert "back to 6 s from 30 s: the hours since contradict it" in run.reason
    assert used[-1] == ForwardTime(6.0)
    assert tuner.state.barred == {longer: clock.time() + 24 * 1800.0}


async def test_too_little_memory_or_time_is_an_error_of_the_run_only(past: Path) -> None:
    with pytest.raises(TuningRunError, match=r"exit status|signal"):
        await program(past, memory_mib=16).run(ORDER, 60.0)
    with pytest.raises(TuningRunError, match="more CPU time than auto_tune_cpu_share permits"):
        await program(past, cpu_seconds=1.0).run(ORDER, 60.0)
    assert not (past / "state" / "auto_tuning").exists()


async def test_a_folder_that_no_service_has_used_is_an_error_of_the_run_only(tmp_path: Path) -> None:
    (tmp_path / "malletrain.toml").write_text(f'state_dir = "{tmp_path}/state"\n')
    (tmp_path / "state").mkdir()
    with pytest.raises(TuningRunError, match=r"exit status 1: .*a state folder that services have used"):
        await program(tmp_path).run(ORDER, 60.0)
