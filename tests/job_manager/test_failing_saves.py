"""While a job's saves fail, no plan changes its nodes; those that are wanted back are released as always."""

from __future__ import annotations

import pytest

from malletrain.job_manager.machine.progress_buffer import decides
from malletrain.job_manager.machine.stimuli import Progressed
from malletrain.job_manager.visibility import visible_to
from malletrain.job_manager.wire import job_message, progress_of
from malletrain.model.job_state import JobState
from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.errors import StalePlanError
from malletrain.v1 import monitor_pb2
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE, FULL = "j000001", "No space left on device"


def saves(machine: MachineHarness, error: str | None) -> None:
    seen = Progressed(ONE, 100, stalled=False, positions_known=True, save_error=error)
    assert decides(machine.job(), seen) == (error is not None or not machine.job().positions_known)
    machine(seen)


def test_neither_a_growth_nor_a_shrink_nor_a_stop_of_a_plan() -> None:
    machine = running("a b", spare="c")
    saves(machine, FULL)
    for nodes in ("a b c", "a", ""):
        with pytest.raises(StalePlanError, match=f"keeps its scale until a save has succeeded.*{FULL}"):
            machine.plan(j1=nodes)
    machine.plan(j1="a b")
    assert machine.job().commanded == ("a", "b")


def test_what_was_wanted_before_is_done_when_a_save_has_succeeded() -> None:
    machine = running("a", job_spec(), job_spec(), spare="c")
    machine.plan(j2="c")
    machine.confirm("j000002")
    machine.plan(j1="a c", j2="")
    saves(machine, FULL)
    machine.end("j000002")
    assert machine.job().wanted == ("a", "c")
    assert machine.job().commanded == ("a",)
    saves(machine, None)
    assert machine.job().commanded == ("a",), "nothing is known of another save"
    saves(machine, "")
    assert machine.job().commanded == ("a", "c")


def test_a_node_that_is_wanted_back_leaves_at_once() -> None:
    machine = running("a b", spare="c")
    saves(machine, FULL)
    machine.leave("b")
    assert machine.job().commanded == ("a",)
    machine.confirm()
    machine.leave("a")
    assert machine.job().state is JobState.STOPPING


def test_a_job_without_processes_may_start() -> None:
    machine = running("a", spare="b")
    saves(machine, FULL)
    machine.leave("a")
    machine.end()
    machine.plan(j1="b")
    assert machine.job().commanded == ("b",)


def test_what_is_told_and_to_whom() -> None:
    machine = running("a")
    saves(machine, FULL)
    told = job_message(machine.job())
    assert told.saves_fail
    assert told.save_error == FULL
    assert told.samples_known
    stranger = visible_to(Identity("stranger", Role.VIEWER, "t1", 0.0, 1.0, ""), told)
    assert stranger.saves_fail
    assert not stranger.save_error


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (None, None),
        (monitor_pb2.SaveReport(), ""),
        (monitor_pb2.SaveReport(failures=1, reason=FULL), FULL),
        (monitor_pb2.SaveReport(failures=1), "the reason is not known"),
    ],
)
def test_what_monitor_tells(told: monitor_pb2.SaveReport | None, error: str | None) -> None:
    entry = monitor_pb2.Progress(job_id=ONE, samples=5, positions_known=True, saves=told)
    assert progress_of(entry) == Progressed(ONE, 5, stalled=False, positions_known=True, save_error=error)
