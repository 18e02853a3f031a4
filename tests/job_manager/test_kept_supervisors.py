"""A job that loses its last node: its supervisor stays for a while, and the job goes on with it."""

from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.machine.effects import ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor, is_pending
from malletrain.job_manager.machine.jobs import StopIntent
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Cancelled, Outcome, Progressed, Shutdown, SupervisorSeen
from malletrain.model.job_state import JobState
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

KEEPING = ManagerPolicy(keep_supervisor_seconds=300.0)
NOBODY: frozenset[str] = frozenset()


def has_kept(machine: MachineHarness, sequence: int | None = None) -> None:
    """The supervisor says that no worker is left, and that it stays."""
    job = machine.job()
    known = job.sequence if sequence is None else sequence
    machine(SupervisorSeen(job.id, job.incarnation, known, known, NOBODY, NOBODY, kept=True))


def waiting(policy: ManagerPolicy = KEEPING) -> MachineHarness:
    """A job that waits, and whose supervisor is kept."""
    machine = running("a b", policy=policy, spare="c")
    machine.plan(j1="")
    has_kept(machine)
    return machine


def test_a_job_without_nodes_waits_as_ever_and_holds_none() -> None:
    machine = running("a b", policy=KEEPING)
    machine.plan(j1="")
    assert machine.effects == (StopSupervisor("j000001", 1, 5.0, 300.0, 1),)
    has_kept(machine)
    job = machine.job()
    assert (job.state, job.held, job.commanded, job.supervised, job.kept) == (JobState.WAITING, (), (), False, True)
    assert job.reason == "waits for nodes (plan 2: no nodes)"
    assert machine.effects == ()


def test_the_next_nodes_are_a_command_to_the_same_supervisor() -> None:
    machine = waiting()
    machine.plan(j1="c")
    job = machine.job()
    assert (job.state, job.incarnation, job.kept) == (JobState.STARTING, 1, True)
    assert machine.effects == (SetHosts("j000001", 1, 2, ("c",)),)
    has_kept(machine, sequence=1)
    assert machine.job().kept, "what it said before the command"
    machine.confirm()
    assert (machine.job().state, machine.job().kept) == (JobState.RUNNING, False)
    assert machine.job().restarts == 0


def test_a_stop_is_pending_until_the_supervisor_stays_or_another_follows() -> None:
    machine = running("a b", policy=KEEPING, spare="c")
    assert not is_pending(StopSupervisor("j000001", 1, 5.0, 300.0, 1), machine.state.jobs)
    machine.plan(j1="")
    (stop,) = machine.effects
    assert isinstance(stop, StopSupervisor)
    assert is_pending(stop, machine.state.jobs)
    assert not is_pending(replace(stop, incarnation=2), machine.state.jobs)
    assert not is_pending(replace(stop, job_id="j000002"), machine.state.jobs)
    has_kept(machine)
    assert not is_pending(stop, machine.state.jobs)
    machine.plan(j1="c")
    machine.confirm()
    machine.plan(j1="")
    assert not is_pending(stop, machine.state.jobs), "this is another stop"


def test_what_it_said_after_an_earlier_stop_does_not_answer_a_later_one() -> None:
    """It may have taken the command in between, and have workers on the nodes."""
    machine = waiting()
    machine.plan(j1="c")
    machine.plan(j1="")
    has_kept(machine, sequence=1)
    assert (machine.job().state, machine.job().held) == (JobState.STOPPING, ("c",))
    has_kept(machine, sequence=2)
    assert (machine.job().state, machine.job().held) == (JobState.WAITING, ())


def test_a_release_that_is_under_way_is_waited_for() -> None:
    machine = running("a", policy=KEEPING)
    machine.leave("a")
    has_kept(machine)
    assert machine.job().state is JobState.STOPPING
    assert ReleaseHosts("j000001", 1, ("a",), 1.5) in machine.effects
    machine.released("a")
    assert (machine.job().state, machine.job().kept) == (JobState.WAITING, True)
    assert [event.reason_code.value for event in machine.events][-2:] == ["NODE_RELEASED", "STOPPED"]


def test_its_end_while_the_job_waits_changes_nothing_else() -> None:
    machine = waiting()
    events = list(machine.events)
    machine.end(outcome=Outcome.STOPPED, message="it got no nodes any more")
    assert (machine.job().state, machine.job().kept, machine.job().counted_failures) == (JobState.WAITING, False, 0)
    assert machine.events == events
    machine.plan(j1="c")
    assert machine.effects == (StartSupervisor("j000001", 2),)


def test_its_end_before_it_takes_the_command_is_no_failure_of_the_job() -> None:
    machine = waiting()
    machine.plan(j1="c")
    machine.end(message="killed")
    job = machine.job()
    assert (job.state, job.incarnation, job.commanded) == (JobState.STARTING, 2, ("c",))
    assert (job.restarts, job.counted_failures, job.kept) == (0, 0, False)
    assert "kept without nodes, had ended (killed)" in machine.events[-2].reason
    assert machine.effects == (StartSupervisor("j000001", 2),)


def test_a_failure_after_it_has_taken_the_command_is_one() -> None:
    machine = waiting()
    machine.plan(j1="c")
    job = machine.job()
    machine(SupervisorSeen(job.id, 1, job.sequence, 1, NOBODY, frozenset("c")))
    machine.end(message="its script failed")
    assert (machine.job().state, machine.job().counted_failures) == (JobState.WAITING, 1)


def test_cancelled_while_it_is_kept() -> None:
    machine = waiting()
    machine(Cancelled("j000001"))
    assert (machine.job().state, machine.job().stop) == (JobState.STOPPING, StopIntent.CANCEL)
    assert machine.effects == (StopSupervisor("j000001", 1, 5.0),)
    machine.end(outcome=Outcome.STOPPED)
    assert machine.job().state is JobState.CANCELLED
    assert not machine.job().has_supervisor


def test_complete_while_it_is_kept() -> None:
    machine = running("a", job_spec(target_samples=100), policy=KEEPING)
    machine.plan(j1="")
    has_kept(machine)
    machine(Progressed("j000001", 100, stalled=False))
    assert (machine.job().state, machine.job().stop) == (JobState.STOPPING, StopIntent.COMPLETE)
    machine.end(outcome=Outcome.STOPPED)
    assert machine.job().state is JobState.COMPLETED


def test_only_a_job_that_waits_for_nodes_keeps_it() -> None:
    machine = running("a", policy=KEEPING)
    machine(Cancelled("j000001"))
    assert machine.effects == (StopSupervisor("j000001", 1, 5.0),)
    has_kept(machine)
    assert (machine.job().state, machine.job().kept) == (JobState.STOPPING, False)
    without = running("a")
    without.plan(j1="")
    assert without.effects == (StopSupervisor("j000001", 1, 5.0),)


def test_an_end_in_good_order_ends_it_too() -> None:
    machine = waiting()
    machine(Shutdown())
    machine.end(outcome=Outcome.STOPPED)
    assert (machine.job().state, machine.job().has_supervisor) == (JobState.WAITING, False)
