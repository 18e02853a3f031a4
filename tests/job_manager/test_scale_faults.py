"""A scale at which the script fails soon is left out for a while, and others are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import ClockStepped, Outcome, SupervisorEnded, SupervisorSeen, WorkerFailure
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import StalePlanError
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

POLICY = ManagerPolicy(restart_backoff_seconds=1.0, restart_backoff_max_seconds=60.0)
ERROR = "worker on c: exit status 1: AssertionError: 4 steps do not divide by 3 workers"


def fail(machine: MachineHarness, scale: int, *, seconds: float = 2.0, by_script: bool = True, count: int = 1) -> None:
    """The supervisor's workers have failed, by the script, soon after a start."""
    failure = WorkerFailure("c", by_script, scale, seconds, count)
    incarnation = machine.job().incarnation
    machine(SupervisorEnded("j000001", incarnation, Outcome.FAILED, ERROR, None, ("c | last",), False, failure))


def start(machine: MachineHarness, nodes: str) -> None:
    """Start it on nodes once its pause is over, and confirm that."""
    machine.wait(61)
    machine.plan(j1=nodes)
    machine.confirm()


def test_another_scale_is_tried_and_what_trains_well_keeps_the_other_one_out() -> None:
    machine = running("a b c", job_spec(1, 4), policy=POLICY, spare="d")
    fail(machine, 3)
    assert machine.job().left_out_scales == (3,)
    assert "fails soon on 3 nodes, so others are tried; --permitted names" in machine.job().reason
    machine.wait(1)
    with pytest.raises(StalePlanError, match="3 nodes are left out"):
        machine.plan(j1="a b c")
    machine.plan(j1="a b")
    assert machine.job().reason == f"plan 2: starts on 2 nodes (after: {ERROR})"
    machine.confirm()
    machine.wait(60)
    assert machine.job().good_scales == (2,)
    machine.wait(599)
    assert machine.job().left_out_scales == (3,)
    machine.wait(2)
    assert machine.job().left_out_scales == (), "it may be tried again"
    counted = machine.job().counted_failures
    machine.plan(j1="a b c")
    machine.confirm()
    fail(machine, 3)
    job = machine.job()
    assert (job.state, job.counted_failures, job.restarts) == (JobState.WAITING, counted, 2), "it is the scale's fault"
    assert "has trained well on 2, so 3 nodes are left out for 20 min" in job.reason


def test_a_script_that_fails_at_every_scale_fails_for_good() -> None:
    machine = running("a b c", job_spec(1, 8), policy=POLICY)
    fail(machine, 3)
    for nodes in ("a b", "a"):
        start(machine, nodes)
        fail(machine, len(nodes.split()))
    assert machine.job().left_out_scales == (), "all that could be tried has been tried"
    start(machine, "a b c")
    fail(machine, 3)
    job = machine.job()
    assert (job.state, job.reason_code, job.restarts) == (JobState.FAILED, JobReason.WORKER_FAILED, 3)
    assert job.reason.endswith("c | last")
    assert "it fails soon at each scale: 1, 2, 3 nodes" in job.reason


def test_no_restart_means_one_start() -> None:
    machine = running("a b c", job_spec(1, 3, max_restarts=0), policy=POLICY)
    fail(machine, 3)
    assert machine.job().state is JobState.FAILED
    assert machine.job().restarts == 0
    assert "--permitted" in machine.job().reason


@pytest.mark.parametrize(
    ("seconds", "by_script", "low"),
    [(61.0, True, 1), (2.0, False, 1), (2.0, True, 3)],
    ids=["late", "killed", "one scale"],
)
def test_other_failures_say_nothing_of_the_scale(seconds: float, by_script: bool, low: int) -> None:
    machine = running("a b c", job_spec(low, 3), policy=POLICY)
    fail(machine, 3, seconds=seconds, by_script=by_script)
    assert machine.job().scale_faults == ()
    assert machine.job().counted_failures == 1


def test_a_scale_that_has_trained_well_is_not_to_blame() -> None:
    machine = running("a b c", job_spec(1, 3), policy=POLICY)
    machine.wait(60)
    fail(machine, 3)
    assert machine.job().left_out_scales == ()


def test_a_preempted_job_does_not_shrink_to_a_scale_that_is_left_out() -> None:
    machine = running("a b c", job_spec(1, 4), policy=POLICY, spare="d")
    fail(machine, 3)
    start(machine, "a b c d")
    machine.leave("d")
    assert len(machine.job().commanded) == 2


def test_failures_that_the_supervisor_has_mended_count_too() -> None:
    machine = running("a", job_spec(1, 1), policy=POLICY)
    fail(machine, 1, by_script=False, count=4)
    assert machine.job().state is JobState.FAILED
    assert "restarted 3 times before" in machine.job().reason


def test_the_last_failure_is_shown_while_the_job_waits() -> None:
    machine = running("a b", job_spec(2, 2), policy=POLICY)
    seen = SupervisorSeen("j000001", 1, 1, 1, frozenset({"a"}), frozenset({"a"}), message=ERROR)
    machine(seen)
    assert (machine.job().reason, machine.job().last_failure) == (ERROR, ERROR)
    fail(machine, 2)
    assert machine.job().reason == f"restart 1 of 3 in 1 s: {ERROR}"
    machine.wait(2)
    assert machine.job().reason == f"back-off is over, waits for nodes (after: {ERROR})"


def test_times_of_scales_move_with_the_clock() -> None:
    machine = running("a b c", job_spec(1, 4), policy=POLICY)
    fail(machine, 3)
    machine.now += 3600
    machine(ClockStepped(3600))
    machine.wait(100)
    assert machine.job().left_out_scales == (3,)
    machine.wait(21)
    assert machine.job().left_out_scales == ()


def test_an_exit_by_the_script_after_a_preemption_is_not_called_that() -> None:
    machine = running("a b", job_spec(1, 2), policy=POLICY)
    machine.leave("b")
    fail(machine, 1)
    assert machine.job().reason.startswith(f"restart 1 of 3 in 1 s: {ERROR}")
    machine = running("a b", job_spec(1, 2), policy=POLICY)
    machine.leave("b")
    fail(machine, 1, by_script=False)
    assert (machine.job().state, machine.job().counted_failures) == (JobState.STARTING, 0), "its other node was taken"


def test_why_workers_were_lost_is_said_once_it_is_known() -> None:
    machine = running("a b", job_spec(1, 2), policy=POLICY)
    seen = SupervisorSeen("j000001", 1, 1, 1, frozenset(), frozenset({"a"}))
    machine(seen)
    assert machine.job().reason == "workers were lost, on: a, b"
    for message in (ERROR, "another one"):
        machine(replace(seen, message=message))
        assert (machine.job().reason, machine.job().last_failure) == (ERROR, ERROR)
