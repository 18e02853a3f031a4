from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.telemetry.node_use import NodeTime
from malletrain.model.node_use import NodeUse
from tests.job_manager.harness import MachineHarness, count_uses
from tests.support.builders import job_spec


def uses(state: ManagerState) -> dict[str, int]:
    return {use.value: count for use, count in count_uses(state).items() if count}


@pytest.fixture
def machine() -> MachineHarness:
    machine = MachineHarness()
    machine.idle("a", "b", "c", "d", "e")
    machine.submit(job_spec())
    return machine


def test_before_the_idle_set_is_known_nothing_is_offered() -> None:
    assert uses(ManagerState()) == {}


def test_a_node_boots_trains_and_is_given_up(machine: MachineHarness) -> None:
    assert uses(machine.state) == {"unassigned": 5}
    machine.plan(j1="a b")
    assert uses(machine.state) == {"booting": 2, "unassigned": 3}
    machine.confirm()
    assert uses(machine.state) == {"training": 2, "unassigned": 3}
    machine.plan(j1="a b c d")
    # The two that train go on while two others start.
    assert uses(machine.state) == {"training": 2, "booting": 2, "unassigned": 1}
    machine.confirm()
    assert uses(machine.state) == {"training": 4, "unassigned": 1}
    machine.plan(j1="a b")
    assert uses(machine.state) == {"training": 2, "stopping": 2, "unassigned": 1}
    machine.confirm()
    machine.plan(j1="")
    assert uses(machine.state) == {"stopping": 2, "unassigned": 3}


def test_a_node_that_has_left_is_not_offered_although_its_job_still_holds_it(machine: MachineHarness) -> None:
    machine.plan(j1="a b")
    machine.confirm()
    machine.leave("b")
    assert "b" in machine.job().held
    assert uses(machine.state) == {"training": 1, "unassigned": 3}


def test_nodes_of_a_stalled_job_do_not_train(machine: MachineHarness) -> None:
    machine.plan(j1="a b")
    machine.confirm()
    stalled = replace(machine.job(), stalled_since=1.0)
    assert uses(replace(machine.state, jobs={stalled.id: stalled})) == {"stalled": 2, "unassigned": 3}


def test_node_time_is_the_integral_of_the_uses() -> None:
    time = NodeTime(now=10.0)
    assert set(time.at(20.0).values()) == {0.0}
    time.change({NodeUse.TRAINING: 2, NodeUse.UNASSIGNED: 1}, now=20.0)
    time.change({NodeUse.UNASSIGNED: 3}, now=25.0)
    assert time.at(25.0)[NodeUse.TRAINING] == 10.0
    assert time.at(27.0)[NodeUse.UNASSIGNED] == 5.0 + 6.0
    assert time.at(27.0)[NodeUse.TRAINING] == 10.0
    time.change({NodeUse.TRAINING: 1}, now=24.0)  # a clock that goes back adds nothing
    assert time.at(25.0)[NodeUse.UNASSIGNED] == 5.0
