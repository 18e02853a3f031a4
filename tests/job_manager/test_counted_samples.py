"""Samples of a trainer that tells no position are exact until other processes go on with its model."""

from __future__ import annotations

from malletrain.job_manager.machine.stimuli import Progressed
from malletrain.job_manager.wire import job_message
from tests.job_manager.harness import MachineHarness, running
from tests.job_manager.test_kept_supervisors import waiting

ONE = "j000001"


def known(machine: MachineHarness) -> bool:
    return job_message(machine.job()).samples_known


def train(machine: MachineHarness, *, positions_known: bool = False) -> MachineHarness:
    machine(Progressed(ONE, 100, stalled=False, positions_known=positions_known))
    return machine


def test_one_start_and_no_change() -> None:
    machine = train(running("a"))
    assert known(machine)
    machine.end()
    machine.wait(60)
    machine.plan(j1="a")
    assert machine.job().incarnation == 2
    assert not known(machine)


def test_a_start_by_the_same_supervisor() -> None:
    machine = waiting()
    assert known(train(machine))
    machine.plan(j1="c")
    assert machine.job().incarnation == 1
    assert not known(machine)


def test_a_change_of_scale() -> None:
    machine = train(running("a", spare="b"))
    machine.plan(j1="a b")
    assert not known(machine)
    train(machine, positions_known=True)
    assert known(machine)
