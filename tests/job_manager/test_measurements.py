from __future__ import annotations

from collections.abc import Callable

import pytest

from malletrain.job_manager.machine.stimuli import Cancelled
from malletrain.job_manager.telemetry.measurements import Measurements, measure
from malletrain.model.job_state import JobState
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec


@pytest.fixture
def machine() -> MachineHarness:
    machine = MachineHarness()
    machine.idle("a", "b", "c")
    machine.submit(job_spec())
    machine.plan(j1="a b")
    machine.confirm()
    return machine


def measured(machine: MachineHarness, act: Callable[[], object]) -> Measurements:
    """What one step amounts to."""
    found: list[Measurements] = []
    machine.observe = lambda _, before, result: found.append(measure(before, result, machine.now))
    act()
    (one,) = found
    return one


def test_submissions_and_ends() -> None:
    machine = MachineHarness()
    assert measured(machine, lambda: machine.submit(job_spec(), job_spec())).submitted == 2
    assert measured(machine, lambda: machine(Cancelled("j000001"))).ended == {JobState.CANCELLED: 1}


def test_a_job_waits_until_its_first_start_only() -> None:
    machine = MachineHarness()
    machine.idle("a", "b")
    machine.submit(job_spec())
    machine.now += 5
    assert measured(machine, lambda: machine.plan(j1="a")).queue_waits == (5.0,)
    machine.now += 3
    assert measured(machine, machine.confirm).scale_changes == (("start", 3.0),)
    ended = measured(machine, machine.end)
    assert (ended.restarts, ended.ended) == (1, {})
    machine.now += 100
    assert measured(machine, lambda: machine.plan(j1="a")).queue_waits == ()


def test_a_rescale_by_a_plan(machine: MachineHarness) -> None:
    assert measured(machine, lambda: machine.plan(j1="a b c")).rescales == {"plan": 1}
    machine.now += 7
    assert measured(machine, machine.confirm).scale_changes == (("rescale", 7.0),)


def test_a_preemption_and_its_release(machine: MachineHarness) -> None:
    left = measured(machine, lambda: machine.leave("b"))
    assert (left.preemptions, left.rescales, left.releases) == (1, {"preemption": 1}, ())
    machine.now += 1.5
    released = measured(machine, lambda: machine.released("b"))
    assert released.releases == (1.5,)


def test_nothing_happens_at_most_ticks(machine: MachineHarness) -> None:
    assert measured(machine, machine.confirm) == Measurements()
