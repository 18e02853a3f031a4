from __future__ import annotations

import time
from pathlib import Path

import pytest

from malletrain.common.job_limits import JobLimits
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import ClockStepped, Progressed
from malletrain.model.job_state import JobState
from malletrain.runtime.clock import ClockSteps, SystemClock
from tests.job_manager.harness import MachineHarness, running
from tests.job_manager.serving import serve_manager
from tests.support.builders import job_spec
from tests.support.clocks import SetClock
from tests.support.waiting import wait_until_async

HOUR = 3600.0


def set_clock(machine: MachineHarness, seconds: float) -> None:
    machine.now += seconds
    machine(ClockStepped(seconds))


def test_only_a_step_is_noticed_and_only_once() -> None:
    clock = SetClock()
    steps = ClockSteps(clock)
    clock.passed += HOUR
    assert steps.take_step() == 0.0
    clock.offset -= HOUR
    clock.passed += 5.0
    assert steps.take_step() == pytest.approx(-HOUR)
    assert steps.take_step() == 0.0


def test_small_steps_add_up() -> None:
    clock = SetClock()
    steps = ClockSteps(clock)
    found = []
    for _ in range(10):
        clock.offset += 0.25
        found.append(steps.take_step())
    assert sum(found) == pytest.approx(2.0)
    assert found[:3] == [0.0] * 3


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_job_that_backs_off_waits_as_long_as_before(step: float) -> None:
    machine = running("a b", policy=ManagerPolicy(restart_backoff_seconds=8.0))
    machine.end()
    assert machine.job().not_before == machine.now + 8.0
    set_clock(machine, step)
    machine.wait(7.0)
    assert machine.job().not_before is not None
    machine.wait(1.0)
    assert machine.job().not_before is None


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_start_gets_as_long_as_before(step: float) -> None:
    machine = MachineHarness()
    machine.idle("a")
    machine.submit(job_spec(limits=JobLimits(start_seconds=60.0)))
    machine.plan(j1="a")
    set_clock(machine, step)
    machine.wait(59.0)
    assert machine.job().state is JobState.STARTING
    machine.wait(1.0)
    assert machine.job().state is JobState.STOPPING


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_stalled_job_gets_as_long_as_before(step: float) -> None:
    machine = running("a", job_spec(limits=JobLimits(step_seconds=30.0)))
    machine(Progressed("j000001", 10, True))
    set_clock(machine, step)
    machine.wait(29.0)
    assert machine.job().state is JobState.RUNNING
    machine.wait(1.0)
    assert machine.job().state is JobState.STOPPING


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_owners_pay_for_the_time_that_has_passed(step: float) -> None:
    half_life = 604_800.0
    machine = running("a b", policy=ManagerPolicy(fair_share_half_life_seconds=half_life))
    machine.wait(10.0)
    set_clock(machine, step)
    machine.wait(10.0)
    assert machine.state.ledger[""].at(machine.now, half_life) == pytest.approx(40.0, rel=0.01)


def test_the_time_of_a_release_is_what_has_passed() -> None:
    machine = running("a b")
    machine.leave("b")
    set_clock(machine, HOUR)
    machine.now += 0.5
    machine.released("b")
    assert [event.release_seconds for event in machine.events if event.release_seconds] == [pytest.approx(0.5)]


def test_a_clock_set_back_while_no_manager_ran_does_not_hold_a_job() -> None:
    machine = running("a", policy=ManagerPolicy(restart_backoff_seconds=8.0))
    machine.end()
    machine.now -= HOUR
    machine.wait(0.5)
    assert machine.job().not_before is None


@pytest.mark.processes
async def test_a_manager_that_runs_notices_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = {"restart_backoff_seconds": 50.0, "reconcile_seconds": 0.05}
    async with serve_manager(tmp_path, tmp_path / "none" / "python", **section) as manager:
        engine = manager.manager.engine
        job_id = await manager.submit()
        await manager.plan(1, j1="n1")
        await wait_until_async(lambda: engine.state.jobs[job_id].not_before is not None)
        before = engine.state.jobs[job_id].not_before
        monkeypatch.setattr(SystemClock, "time", lambda _: time.time() + HOUR)
        await wait_until_async(lambda: engine.state.jobs[job_id].not_before != before)
        assert engine.state.jobs[job_id].not_before == pytest.approx(before + HOUR, abs=1.0)
