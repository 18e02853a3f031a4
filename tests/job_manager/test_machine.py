"""The pure core, story by story."""

from __future__ import annotations

import pytest

from malletrain.job_manager.machine.effects import ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor
from malletrain.job_manager.machine.jobs import StopIntent
from malletrain.job_manager.machine.state import ManagerPolicy, Notice
from malletrain.job_manager.machine.stimuli import (
    Cancelled,
    Completion,
    NodesChanged,
    Outcome,
    PlanReceived,
    Progressed,
    Shutdown,
    SupervisorSeen,
    TrainerDone,
)
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import (
    TRANSITIONS,
    IllegalTransitionError,
    JobReason,
    permits_transition,
)
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import NotFoundError, StalePlanError
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE, TWO = "j000001", "j000002"


def test_the_transition_table() -> None:
    for before, after in TRANSITIONS.items():
        for state in JobState:
            assert permits_transition(before, state) == (state in after or (state is before and not before.final))


def test_transitions_outside_the_table_are_refused_and_name_the_job() -> None:
    machine = running("a")
    transaction = Transaction(machine.state, machine.policy, machine.now)
    expected = "job j000001: no transition from RUNNING to QUEUED .SUBMITTED."
    with pytest.raises(IllegalTransitionError, match=expected) as caught:
        transaction.move(machine.job(), JobState.QUEUED, JobReason.SUBMITTED, "because")
    assert caught.value.job_id == ONE


def test_admission_fills_all_places_at_once_in_order() -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=2))
    machine.submit(job_spec(), job_spec(), job_spec(), job_spec())
    assert [job.state for job in machine.state.jobs.values()] == [JobState.WAITING] * 2 + [JobState.QUEUED] * 2
    machine(Cancelled(ONE))
    machine(Cancelled(TWO))
    assert machine.job(ONE).state is JobState.CANCELLED
    assert [job.state for job in machine.state.jobs.values()] == [JobState.WAITING] * 2


def test_start_confirm_and_complete() -> None:
    machine = MachineHarness()
    machine.idle("a", "b")
    machine.submit(job_spec())
    machine.plan(j1="a b")
    job = machine.job()
    assert job.state is JobState.STARTING
    assert list(machine.effects) == [StartSupervisor(ONE, 1)]
    machine.confirm()
    assert machine.job().state is JobState.RUNNING
    assert machine.job().confirmed == ("a", "b")
    assert not machine.effects
    machine.end(outcome=Outcome.EXITED, completion=Completion(640, {"accuracy": 0.9}))
    job = machine.job()
    assert (job.state, job.samples, job.metrics) == (JobState.COMPLETED, 640, {"accuracy": 0.9})
    assert job.held == job.commanded == job.wanted == ()


def test_a_change_in_flight_is_confirmed_before_the_next() -> None:
    machine = running("a", spare="b c")
    machine.plan(j1="a b")
    assert machine.effects == (SetHosts(ONE, 1, 2, ("a", "b")),)
    machine.plan(j1="a b c")
    assert machine.job().commanded == ("a", "b")
    assert machine.job().wanted == ("a", "b", "c")
    machine.confirm()
    assert machine.job().commanded == ("a", "b", "c")
    machine.confirm()
    assert machine.job().state is JobState.RUNNING
    assert machine.job().rescales == 2


def test_growth_waits_until_the_shrinking_job_has_let_go() -> None:
    machine = running("a b", job_spec(), job_spec(), spare="c")
    machine.plan(j2="c")
    machine.confirm(TWO)
    result = machine.plan(j1="a", j2="b c")
    assert result.rescaled == (ONE, TWO)
    assert machine.job(ONE).commanded == ("a",)
    assert machine.job(TWO).commanded == ("c",)
    machine.confirm(ONE, occupied="a b")
    assert machine.job(TWO).commanded == ("c",), "a worker lingers on b"
    assert ReleaseHosts(ONE, 1, ("b",), 1.5) in machine.effects
    machine.released("b")
    assert set(machine.job(TWO).commanded) == {"b", "c"}


def test_a_plan_for_no_nodes_stops_the_job_and_frees_its_nodes_at_the_end() -> None:
    machine = running("a b", job_spec(), job_spec())
    machine.plan(j1="", j2="a b")
    assert machine.job(ONE).state is JobState.STOPPING
    assert machine.effects == (StopSupervisor(ONE, 1, 5.0),)
    assert machine.job(TWO).state is JobState.WAITING
    machine.end(ONE, outcome=Outcome.STOPPED)
    assert machine.job(ONE).state is JobState.WAITING
    assert machine.job(TWO).state is JobState.STARTING


def test_leave_releases_the_node_first_and_tells_when_it_was_free() -> None:
    machine = running("a b c")
    machine.leave("b")
    job = machine.job()
    assert job.state is JobState.RESCALING
    assert job.wanted == job.commanded == job.confirmed == ("a", "c")
    assert "b left" in job.reason
    assert job.preemptions == 1
    assert machine.effects == (ReleaseHosts(ONE, 1, ("b",), 1.5), SetHosts(ONE, 1, 2, ("a", "c")))
    machine.now += 0.25
    machine.released("b")
    assert machine.events[-1].release_seconds == pytest.approx(0.25)
    assert machine.job().held == ("a", "c")
    machine.confirm()
    assert machine.job().state is JobState.RUNNING


def test_leave_below_the_smallest_scale_releases_first_and_stops_the_rest() -> None:
    machine = running("a b c", job_spec(3, 4))
    machine.leave("a")
    assert machine.job().state is JobState.STOPPING
    assert machine.effects == (ReleaseHosts(ONE, 1, ("a",), 1.5), StopSupervisor(ONE, 1, 5.0))
    with pytest.raises(StalePlanError, match=r"a \(for job j000001\) is not idle"):
        machine.plan(j1="a b c")
    machine.join("a")
    with pytest.raises(StalePlanError, match="still being released"):
        machine.plan(j1="a b c")
    machine.released("a")
    machine.plan(j1="a b c")
    assert machine.job().state is JobState.STOPPING
    machine.end(outcome=Outcome.STOPPED)
    job = machine.job()
    assert job.state is JobState.STARTING
    assert (job.restarts, job.incarnation) == (0, 2)


def test_leave_shrinks_to_a_permitted_scale() -> None:
    machine = running("a b c d", job_spec(1, 4, permitted_nodes=(1, 2, 4)))
    machine.leave("a")
    assert machine.job().commanded == ("b", "c")
    machine.released("a")
    machine.confirm()
    assert machine.job().held == ("b", "c")


def test_leave_of_all_nodes_with_state_restarts_on_the_newcomers() -> None:
    machine = running("a", spare="b c")
    machine.plan(j1="a b c")
    machine.leave("a")
    assert machine.job().stop is StopIntent.WAIT
    machine.end()
    job = machine.job()
    assert job.state is JobState.STARTING
    assert job.commanded == ("b", "c")
    assert job.restarts == 0


def test_leave_of_a_node_that_is_only_wanted() -> None:
    machine = running("a b", job_spec(), job_spec(1, 1), spare="c")
    machine.plan(j2="c")
    machine.confirm(TWO)
    machine.plan(j1="a b c", j2="")
    machine.leave("c")
    assert machine.job(ONE).wanted == ("a", "b")
    assert machine.job(ONE).state is JobState.RUNNING
    assert ReleaseHosts(TWO, 1, ("c",), 1.5) in machine.effects


def test_nodes_missing_after_a_reconnect_have_left() -> None:
    machine = running("a b")
    machine.idle("b", "c")
    assert machine.job().commanded == ("b",)
    assert "a left" in machine.job().reason


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ({"j1": "a b x"}, "node x .* is not idle"),
        ({"j2": "a"}, "node a .* is job j000001's"),
        ({"j1": "a", "j2": "a"}, "node a .* is job j000001's"),
        ({"j9": "c"}, "j000009 is unknown or has ended"),
        ({"j3": "c"}, "j000003 is not admitted"),
        ({"j2": "b c d"}, r"expected 1-2 nodes, got 3"),
        ({"j1": "a c"}, "to gain or to lose nodes, not both"),
    ],
)
def test_stale_plans_are_refused_whole(assignments: dict[str, str], message: str) -> None:
    machine = running("a b", job_spec(), job_spec(1, 2), job_spec(), policy=ManagerPolicy(max_parallel=2), spare="c d")
    before = machine.state
    with pytest.raises(StalePlanError, match=message):
        machine.plan(**assignments)
    assert machine.state == before


def test_generations_only_grow() -> None:
    machine = running("a b")
    result = machine.plan(j1="a")
    with pytest.raises(StalePlanError, match="expected above 2"):
        machine(PlanReceived(result.state.generation, ()))


def test_failures_back_off_and_end_as_failed_with_the_log() -> None:
    machine = running("a", job_spec(max_restarts=2))
    for restart, pause in ((1, 1.0), (2, 2.0)):
        machine.end()
        job = machine.job()
        assert job.state is JobState.WAITING
        assert job.not_before == machine.now + pause
        assert f"restart {restart} of 2" in job.reason
        with pytest.raises(StalePlanError, match="gets no nodes for another"):
            machine.plan(j1="a")
        machine.wait(pause)
        assert machine.job().not_before is None
        machine.plan(j1="a")
        machine.confirm()
    machine.end(log_tail=("n1 | Traceback", "n1 | ValueError: lr"))
    job = machine.job()
    assert (job.state, job.restarts) == (JobState.FAILED, 2)
    assert "rank 0 died" in job.reason
    assert job.reason.endswith("n1 | Traceback\nn1 | ValueError: lr")


def test_a_training_whose_rank_0_ended_well_is_complete() -> None:
    machine = running("a")
    machine.end(outcome=Outcome.EXITED, message="rank 0 on a ended with exit status 0")
    job = machine.job()
    assert (job.state, job.restarts, job.counted_failures) == (JobState.COMPLETED, 0, 0)
    assert job.reason == "rank 0 on a ended with exit status 0"


def test_the_reason_of_a_completed_job_says_what_it_rests_on() -> None:
    said = running("a", job_spec(target_samples=100))
    said(Progressed(ONE, 99, stalled=False))
    said.end(outcome=Outcome.EXITED, message="rank 0 ended", completion=Completion())
    assert said.job().reason == "the trainer says that it is done"
    reached = running("a", job_spec(target_samples=100))
    reached(Progressed(ONE, 100, stalled=False))
    reached.end(outcome=Outcome.EXITED, message="rank 0 ended")
    assert reached.job().reason == "reached its target of 100 samples"
    exited = running("a", job_spec(target_samples=100))
    exited(Progressed(ONE, 99, stalled=False))
    exited.end(outcome=Outcome.EXITED, message="")
    assert exited.job().reason == "rank 0 ended with exit status 0"
    assert {job.job().state for job in (said, reached, exited)} == {JobState.COMPLETED}


def test_a_training_that_was_over_before_it_was_stopped_is_complete() -> None:
    """The supervisor says EXITED only if nobody had asked the workers to leave by then."""
    cancelled = running("a")
    cancelled(Cancelled(ONE))
    cancelled.end(outcome=Outcome.EXITED, message="rank 0 ended")
    preempted = running("a b")
    preempted.leave("b")
    preempted.end(outcome=Outcome.EXITED, message="rank 0 ended")
    all_taken = running("a")
    all_taken.leave("a")
    assert all_taken.job().stop is StopIntent.WAIT
    all_taken.end(outcome=Outcome.EXITED, message="rank 0 ended")
    assert {run.job().state for run in (cancelled, preempted, all_taken)} == {JobState.COMPLETED}


def test_a_job_that_left_when_it_was_asked_to_waits_for_nodes() -> None:
    machine = running("a")
    machine.leave("a")
    machine.end(outcome=Outcome.STOPPED)
    assert (machine.job().state, machine.job().restarts) == (JobState.WAITING, 0)


def test_a_long_good_run_forgives_failures() -> None:
    machine = running("a")
    machine.end()
    machine.wait(1)
    machine.plan(j1="a")
    machine.confirm()
    machine.wait(600)
    assert (machine.job().counted_failures, machine.job().restarts) == (0, 1)


def test_a_failure_during_a_preemption_is_not_the_jobs() -> None:
    machine = running("a b")
    machine.leave("b")
    machine.end()
    job = machine.job()
    assert job.state is JobState.STARTING
    assert (job.restarts, job.commanded) == (0, ("a",))


def test_target_reached() -> None:
    machine = running("a", job_spec(target_samples=100))
    machine(Progressed(ONE, 99, stalled=False))
    assert machine.job().state is JobState.RUNNING
    machine(Progressed(ONE, 104, stalled=False))
    assert machine.job().stop is StopIntent.COMPLETE
    machine.end(outcome=Outcome.STOPPED)
    assert (machine.job().state, machine.job().samples) == (JobState.COMPLETED, 104)


def test_a_trainer_that_is_done_but_does_not_end() -> None:
    machine = running("a")
    machine(TrainerDone(ONE))
    machine.wait(9)
    assert machine.job().stop is None
    machine.wait(1)
    assert machine.job().stop is StopIntent.COMPLETE


def test_cancel() -> None:
    machine = running("a")
    machine(Cancelled(ONE))
    assert machine.job().state is JobState.STOPPING
    with pytest.raises(StalePlanError, match="is ending"):
        machine.plan(j1="a")
    machine.end(outcome=Outcome.STOPPED)
    assert machine.job().state is JobState.CANCELLED
    with pytest.raises(NotFoundError):
        machine(Cancelled(ONE))


def test_lost_workers_are_a_rescale_that_was_not_commanded() -> None:
    machine = running("a b")
    job = machine.job()
    machine(SupervisorSeen(ONE, 1, job.sequence, job.sequence, frozenset("a"), frozenset("a")))
    assert machine.job().state is JobState.RESCALING
    assert "workers were lost, on: b" in machine.job().reason
    machine.confirm()
    assert machine.job().state is JobState.RUNNING


def test_old_supervisors_are_ignored() -> None:
    machine = running("a")
    before = machine.state
    machine(SupervisorSeen(ONE, 7, 9, 9, frozenset("a"), frozenset("a")))
    assert machine.state == before


def test_states_that_are_overtaken_are_ignored() -> None:
    machine = running("a", spare="b")
    machine.plan(j1="a b")
    machine.confirm()
    before = machine.state
    machine(SupervisorSeen(ONE, 1, 1, 1, frozenset("a"), frozenset("a")))
    assert machine.state == before


def test_trainers_are_told_of_changes() -> None:
    machine = running("a b", spare="c")
    assert machine.plan(j1="a b c").notices == ((ONE, Notice.RESCALE_COMING, 3),)
    machine.confirm()
    left = machine(NodesChanged(frozenset(), frozenset("c"), machine.now))
    assert left.notices == ((ONE, Notice.RELEASE_REQUESTED, 2),)


def test_shutdown_stops_everything_and_starts_nothing() -> None:
    machine = running("a", job_spec(), job_spec(1, 1))
    machine.plan(j1="", j2="a")
    machine(Shutdown())
    machine.end(ONE, outcome=Outcome.STOPPED)
    assert [job.state for job in machine.state.jobs.values()] == [JobState.WAITING] * 2


def test_a_move_over_a_scale_that_is_not_permitted_goes_over_a_restart() -> None:
    machine = running("a b", job_spec(2, 4, permitted_nodes=(2, 4)), job_spec(), spare="c d")
    machine.plan(j2="c d")
    machine.confirm(TWO)
    machine.plan(j1="a b c d", j2="")
    machine.plan(j1="a c")
    assert machine.job(ONE).stop is StopIntent.WAIT
    assert machine.job(ONE).wanted == ("a", "c")
    machine.end(ONE, outcome=Outcome.STOPPED)
    machine.end(TWO, outcome=Outcome.STOPPED)
    assert machine.job(ONE).commanded == ("a", "c")


def test_a_leave_while_the_world_re_forms_does_not_count_as_a_loss_of_state() -> None:
    machine = running("a b c")
    machine.plan(j1="a b")
    machine(SupervisorSeen(ONE, 1, 2, 1, frozenset(), frozenset("abc")))
    assert machine.job().confirmed == ()
    machine.leave("b")
    assert (machine.job().state, machine.job().commanded) == (JobState.RESCALING, ("a",))
