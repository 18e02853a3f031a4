"""Auto-tuning beside the control loop: over restarts and faults of the replays, and never against the operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from malletrain.allocator.auto_tuning.documents import TuningOrder
from malletrain.allocator.auto_tuning.machine import (
    AutoTune,
    ForwardChoice,
    ReplayedGain,
    TuningAnswer,
    TuningBounds,
    TuningEvent,
)
from malletrain.allocator.auto_tuning.replay_process import TuningRunError
from malletrain.allocator.auto_tuning.store import TuningStore
from malletrain.allocator.auto_tuning.tuner import AutoTuner, TunerOptions
from malletrain.allocator.auto_tuning.wire import tuner_options
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from tests.support.waiting import wait_until_async

CONFIGURED = ForwardTime(120.0)
LONGER = ForwardChoice(ForwardPolicy.CONSTANT, 240.0)
OPTIONS = TunerOptions(AutoTune.APPLY, CONFIGURED, TuningBounds(30.0, 960.0), 0.02, 1.0, 1.0)


@dataclass
class Past:
    """What replays find; each entry is an answer, or what goes wrong. The last one is repeated."""

    answers: list[TuningAnswer | Exception]
    orders: list[TuningOrder] = field(default_factory=list)

    async def __call__(self, order: TuningOrder, seconds: float) -> TuningAnswer:
        await asyncio.sleep(0)
        self.orders.append(order)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


@asynccontextmanager
async def tuning(
    folder: Path, past: Past, options: TunerOptions = OPTIONS
) -> AsyncIterator[tuple[AutoTuner, TuningStore, list[ForwardTime]]]:
    used: list[ForwardTime] = []
    store = TuningStore(open_database(DatabaseAddress("allocator", folder)))
    tuner = AutoTuner(options, store, SystemClock(), past, used.append, AllocatorMetrics())
    task = asyncio.create_task(tuner.run())
    try:
        yield tuner, store, used
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def seen(store: TuningStore, event: TuningEvent) -> Callable[[], bool]:
    return lambda: any(run.event is event for run in store.newest(1000))


STEP = TuningAnswer(ReplayedGain(LONGER, 0.05, 0.01, 24.0), advice=("job_manager.max_parallel = 15 would give more",))
UNCLEAR = TuningAnswer(note="nothing has trained since the step")


async def test_a_step_is_in_force_with_its_reason_and_stays_over_a_restart(tmp_path: Path) -> None:
    async with tuning(tmp_path, Past([STEP, UNCLEAR])) as (tuner, store, used):
        await wait_until_async(seen(store, TuningEvent.WATCHED), 10)
        assert used[0] == CONFIGURED
        assert used[-1] == replace(CONFIGURED, seconds=240.0)
        assert "240 s in place of 120 s" in tuner.state.why
        step = next(run for run in store.newest(1000) if run.event is TuningEvent.STEP)
        assert "max_parallel = 15" in step.reason, "what the Allocator can't change is told"
    past = Past(
        [TuningAnswer(back=ReplayedGain(ForwardChoice(ForwardPolicy.CONSTANT, 120.0), 0.02, None, 1.0)), UNCLEAR]
    )
    async with tuning(tmp_path, past) as (tuner, store, used):
        assert used == [replace(CONFIGURED, seconds=240.0)], "at once, before any run"
        await wait_until_async(seen(store, TuningEvent.WENT_BACK), 10)
        assert past.orders[0].question.before == ForwardChoice(ForwardPolicy.CONSTANT, 120.0)
        assert used[-1] == CONFIGURED


@pytest.mark.parametrize("error", [TuningRunError("killed by signal 9"), ZeroDivisionError("a defect")])
async def test_faults_of_replays_end_nothing(tmp_path: Path, error: Exception) -> None:
    async with tuning(tmp_path, Past([error, error, STEP, UNCLEAR])) as (_, store, used):
        await wait_until_async(seen(store, TuningEvent.STEP), 10)
        failures = [run for run in store.newest(1000) if run.event is TuningEvent.FAILED]
        assert len(failures) == 2
        assert all(str(error) in run.reason for run in failures)
        assert used[-1].seconds == 240.0


async def test_what_the_operator_writes_is_in_force(tmp_path: Path) -> None:
    async with tuning(tmp_path, Past([STEP, UNCLEAR])) as (_, store, used):
        await wait_until_async(lambda: used[-1].seconds == 240.0, 10)
    off = replace(OPTIONS, mode=AutoTune.OFF)
    async with tuning(tmp_path, Past([STEP]), off) as (tuner, store, used):
        assert used == [CONFIGURED]
        assert store.newest(1)[0].event is TuningEvent.RESET
        assert tuner.state.trial is None
    other = replace(OPTIONS, mode=AutoTune.ADVISE, configured=ForwardTime(60.0, ForwardPolicy.SURVIVAL, 0.5))
    advice = TuningAnswer(ReplayedGain(ForwardChoice(ForwardPolicy.CONSTANT, 60.0), 0.05, 0.01, 24.0))
    async with tuning(tmp_path, Past([advice]), other) as (_, store, used):
        await wait_until_async(seen(store, TuningEvent.ADVICE), 10)
        assert set(used) == {other.configured}, "only advised"


async def test_off_asks_for_nothing(tmp_path: Path) -> None:
    past = Past([STEP])
    async with tuning(tmp_path, past, replace(OPTIONS, mode=AutoTune.OFF)) as (tuner, store, used):
        await asyncio.wait_for(tuner.run(), 10)
        assert (past.orders, store.newest(9), used) == ([], [], [CONFIGURED])


def test_the_settings_are_off_unless_the_operator_says_otherwise() -> None:
    found = tuner_options(AllocatorSettings())
    assert found == TunerOptions(AutoTune.OFF, CONFIGURED, TuningBounds(30.0, 960.0), 3600.0, 0.05, 21600.0)
    for bounds in ((60.0, 30.0), (0.0, 30.0), (30.0, float("inf"))):
        with pytest.raises(ValueError, match="auto_tune_bounds"):
            AllocatorSettings(auto_tune_bounds=bounds)
