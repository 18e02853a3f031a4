"""A job is presumed to hang on evidence only: silence is no fault."""

from __future__ import annotations

import pytest

from malletrain.common.job_limits import JobLimits
from malletrain.job_manager.machine.hangs import presumed_hang, without_evidence
from malletrain.job_manager.machine.jobs import StopIntent
from malletrain.job_manager.machine.progress_buffer import decides
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Progressed, SupervisorSeen
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE = "j000001"
HALF_AN_HOUR = 1800.0
# Seconds for which processes wait for each other, or do nothing, before a job is presumed to hang.
DEADLOCK, IDLE = ManagerPolicy().stall_seconds, ManagerPolicy().idle_seconds


def training(**limits: float) -> MachineHarness:
    return running("a b", job_spec(limits=JobLimits(**limits)))


def silent(machine: MachineHarness, seconds: float = 61.0, phase: str = "") -> None:
    machine.now += seconds
    machine(Progressed(ONE, 10, stalled=True, phase=phase, seconds=seconds))


def idle(machine: MachineHarness, seconds: float = 30.0, *, deadlocked: bool = False) -> None:
    job = machine.job()
    nodes = frozenset(job.confirmed)
    machine(
        SupervisorSeen(
            ONE,
            job.incarnation,
            job.sequence,
            job.sequence if job.state is JobState.RUNNING else job.sequence - 1,
            nodes,
            frozenset(job.commanded),
            idle_seconds=seconds,
            deadlocked=deadlocked,
        )
    )


def hangs(machine: MachineHarness) -> bool:
    return machine.job().stop is StopIntent.RESTART


def assert_hangs_after(machine: MachineHarness, seconds: float) -> None:
    machine.wait(seconds - 1)
    assert not hangs(machine)
    machine.wait(1)
    assert hangs(machine)


def test_silence_without_evidence_is_no_fault_for_half_an_hour() -> None:
    machine = training()
    silent(machine, 61.0)
    assert_hangs_after(machine, HALF_AN_HOUR - 61)
    assert machine.job().reason_code is JobReason.STALLED
    assert "no batch has ended for 1800 s; its limit of a step is 1800 s" in machine.job().reason
    machine.end()
    job = machine.job()
    assert (job.state, job.restarts, job.commanded) == (JobState.STARTING, 1, ("a", "b"))
    assert job == without_evidence(job)


def test_a_silence_that_ends_is_forgotten() -> None:
    machine = training()
    silent(machine)
    machine(Progressed(ONE, 20, stalled=False))
    machine.wait(2 * HALF_AN_HOUR)
    assert machine.job().state is JobState.RUNNING


def test_processes_that_wait_for_each_other_hang() -> None:
    machine = training()
    silent(machine, 61.0)
    idle(machine, 60.0, deadlocked=True)
    assert_hangs_after(machine, DEADLOCK - 60)
    assert f"its processes have waited for each other for {DEADLOCK:g} s" in machine.job().reason


def test_processes_that_sleep_have_longer_than_those_that_wait_for_each_other() -> None:
    machine = training()
    silent(machine, 61.0)
    idle(machine, 60.0)
    assert_hangs_after(machine, IDLE - 60)
    assert f"its processes have done nothing for {IDLE:g} s" in machine.job().reason


def test_idle_processes_are_no_evidence_while_batches_come() -> None:
    machine = training()
    idle(machine, 30.0, deadlocked=True)
    machine.wait(HALF_AN_HOUR - 31)
    machine(Progressed(ONE, 20, stalled=False))
    idle(machine, 0.0)
    machine.wait(HALF_AN_HOUR)
    assert machine.job().state is JobState.RUNNING


def test_a_silence_counts_from_where_both_have_begun() -> None:
    machine = training()
    silent(machine, 500.0)
    idle(machine, 30.0, deadlocked=True)
    assert_hangs_after(machine, DEADLOCK - 30)


def test_processes_that_are_at_work_again_are_no_evidence() -> None:
    machine = training()
    silent(machine)
    idle(machine, 60.0, deadlocked=True)
    machine.wait(20)
    idle(machine, 0.0)
    machine.wait(100)
    idle(machine, 30.0, deadlocked=True)
    assert_hangs_after(machine, DEADLOCK - 30)


def test_what_never_reports_is_looked_at_after_the_limit_of_a_start() -> None:
    machine = training(start_seconds=900.0)
    idle(machine, 30.0)
    assert_hangs_after(machine, 900.0)
    assert "done nothing for 900 s" in machine.job().reason


@pytest.mark.parametrize(
    ("phase", "limits", "seconds", "reason"),
    [
        ("evaluate", {}, HALF_AN_HOUR, "it has been in the phase evaluate for 1800 s; its limit of an evaluation"),
        ("evaluate", {"evaluation_seconds": 7200.0}, 7200.0, "phase evaluate for 7200 s"),
        ("save", {"save_seconds": 300.0}, 300.0, "phase save for 300 s; its limit of a save is 300 s"),
        ("start", {"start_seconds": 400.0}, 400.0, "phase start for 400 s"),
        ("pause", {"step_seconds": 500.0}, 500.0, "phase pause for 500 s; its limit of a step"),
        ("", {"step_seconds": 3600.0}, 3600.0, "no batch has ended for 3600 s"),
    ],
)
def test_a_limit_of_the_job_is_exceeded(phase: str, limits: dict[str, float], seconds: float, reason: str) -> None:
    machine = training(**limits)
    silent(machine, 61.0, phase)
    assert_hangs_after(machine, seconds - 61)
    assert reason in machine.job().reason


def test_a_limit_of_the_jobs_own_holds_in_place_of_idle_processes_but_not_of_a_deadlock() -> None:
    for deadlocked in (False, True):
        machine = training(step_seconds=3600.0)
        silent(machine, 61.0)
        idle(machine, 60.0, deadlocked=deadlocked)
        assert_hangs_after(machine, DEADLOCK - 60 if deadlocked else 3600.0 - 61)


def test_in_a_phase_processes_may_wait_for_others_outside_of_the_job() -> None:
    machine = training()
    silent(machine, 61.0, "evaluate")
    idle(machine, 60.0, deadlocked=True)
    assert_hangs_after(machine, IDLE - 60)


def test_one_phase_after_the_other_has_its_own_time() -> None:
    machine = training(save_seconds=300.0)
    silent(machine, 1000.0, "evaluate")
    machine(Progressed(ONE, 10, stalled=True, phase="save", seconds=1.0))
    assert_hangs_after(machine, 299.0)


def test_evidence_of_before_a_restart_of_job_manager_does_not_count() -> None:
    machine = training()
    silent(machine, 61.0)
    idle(machine, 60.0, deadlocked=True)
    later = machine.now + 3600
    assert presumed_hang(machine.job(), machine.policy, later) is not None
    assert presumed_hang(without_evidence(machine.job()), machine.policy, later) is None


@pytest.mark.parametrize(("phase", "name"), [("", "step_seconds"), ("save", "save_seconds")])
def test_a_limit_below_what_counts_as_silence_holds_too(phase: str, name: str) -> None:
    machine = training(**{name: 5.0})
    for seconds, long in ((4.0, False), (5.0, True)):
        seen = Progressed(ONE, 10, stalled=False, phase=phase, seconds=seconds)
        assert decides(machine.job(), seen) is long
    machine.now += 5.0
    machine(Progressed(ONE, 10, stalled=False, phase=phase, seconds=5.0))
    machine.wait(0.0)
    assert hangs(machine)


def starting(policy: ManagerPolicy | None = None, **limits: float) -> MachineHarness:
    machine = MachineHarness(policy or ManagerPolicy())
    machine.idle("a")
    machine.submit(job_spec(limits=JobLimits(**limits), max_restarts=9))
    machine.plan(j1="a")
    return machine


def test_a_start_that_works_has_half_an_hour() -> None:
    machine = starting()
    assert_hangs_after(machine, HALF_AN_HOUR)
    assert machine.job().reason == "scale of 1 node not confirmed within 1800 s"


def test_a_start_has_the_jobs_own_limit() -> None:
    assert_hangs_after(starting(start_seconds=100.0), 100.0)
    machine = starting(start_seconds=7200.0)
    idle(machine, 60.0)
    assert_hangs_after(machine, 7200.0)


def test_a_start_whose_processes_wait_for_each_other_is_given_up_and_each_restart_has_twice_the_time() -> None:
    machine = starting(ManagerPolicy(rescale_deadline_seconds=60.0, stall_seconds=30.0))
    for limit in (60, 120, 240, 480, 480):
        idle(machine, 1.0, deadlocked=True)
        assert_hangs_after(machine, limit)
        assert "not confirmed: its processes have waited for each other" in machine.job().reason
        machine.end()
    assert machine.job().counted_failures == 5


def test_a_job_that_trains_on_waits_for_its_newcomers() -> None:
    machine = running("a", job_spec(limits=JobLimits(start_seconds=10.0)), spare="b")
    machine.plan(j1="a b")
    assert_hangs_after(machine, 300.0)


def test_a_change_without_batches_and_idle_processes_is_given_up() -> None:
    machine = running("a", spare="b")
    machine.plan(j1="a b")
    silent(machine, 70.0)
    idle(machine, 60.0, deadlocked=True)
    assert_hangs_after(machine, DEADLOCK - 60)
    machine.end()
    assert (machine.job().state, machine.job().restarts) == (JobState.STARTING, 1)
