"""The newest command of a scale, as Monitor is told it: from where to where, and whether it was disturbed."""

from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.machine.stimuli import SupervisorSeen
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.wire import job_message
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScaleCommand
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE = "j000001"


def command(machine: MachineHarness) -> ScaleCommand:
    found = machine.job().scale_command
    assert found is not None
    return found


def seen(machine: MachineHarness, confirmed: str, **changes: object) -> None:
    job = machine.job()
    nodes = frozenset(confirmed.split())
    state = SupervisorSeen(ONE, job.incarnation, job.sequence, job.sequence, nodes, nodes)
    machine(replace(state, **changes))  # type: ignore[arg-type]


def test_a_start_a_growth_and_a_shrink() -> None:
    machine = running("a", spare="b c")
    assert command(machine) == ScaleCommand(1, 1000.0, 0, 1)
    machine.now += 50
    machine.plan(j1="a b c")
    assert command(machine) == ScaleCommand(2, 1050.0, 1, 3)
    machine.confirm()
    machine.plan(j1="a")
    assert command(machine) == ScaleCommand(3, 1050.0, 3, 1)


def test_a_preemption_is_a_shrink_from_the_scale_that_trained() -> None:
    machine = running("a b c")
    machine.now += 50
    machine.leave("c")
    assert command(machine) == ScaleCommand(2, 1050.0, 3, 2)


def test_a_preemption_during_a_growth_disturbs_it() -> None:
    machine = running("a", spare="b c")
    machine.plan(j1="a b c")
    machine.leave("c")
    assert command(machine) == ScaleCommand(3, 1000.0, 3, 2, disturbed_unix_seconds=1000.0)


def test_a_preemption_during_a_start_is_still_a_start() -> None:
    machine = MachineHarness()
    machine.idle("a", "b")
    machine.submit(job_spec())
    machine.plan(j1="a b")
    machine.leave("b")
    assert command(machine).from_nodes == 0


def test_workers_that_are_lost_or_fail_disturb_the_newest_command() -> None:
    machine = running("a", spare="b")
    machine.plan(j1="a b")
    seen(machine, "a", confirmed_sequence=1, failures=(("b", 1),))
    assert command(machine).disturbed_unix_seconds == 1000.0
    machine.confirm()
    machine.plan(j1="a")
    assert command(machine) == ScaleCommand(3, 1000.0, 2, 1)
    machine.confirm()
    seen(machine, "")
    assert machine.job().state is JobState.RESCALING
    assert command(machine).disturbed_unix_seconds == 1000.0


def test_a_start_after_a_stop_is_none_of_a_running_job() -> None:
    machine = running("a b")
    machine.plan(j1="")
    machine.end()
    machine.plan(j1="a")
    assert command(machine).from_nodes == 0
    assert command(machine).to_nodes == 1


def test_it_is_stored_and_told() -> None:
    machine = running("a", spare="b")
    machine.plan(j1="a b")
    job = decode(encode(machine.job()))
    assert job == machine.job()
    told = job_message(job).scale_command
    assert (told.number, told.from_nodes, told.to_nodes, told.disturbed_unix_seconds) == (2, 1, 2, 0.0)
