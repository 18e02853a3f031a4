"""The pure core, story by story."""

from __future__ import annotations

import pytest

from malletrain.job_manager.effects import ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor
from malletrain.job_manager.jobs import StopIntent
from malletrain.job_manager.states import TRANSITIONS, IllegalTransitionError, JobState, check_transition
from malletrain.job_manager.stimuli import (
    Cancelled,
    Completion,
    Outcome,
    PlanReceived,
    Progressed,
    Shutdown,
    SupervisorSeen,
    TrainerDone,
)
from malletrain.job_manager.world import Notice, Policy
from malletrain.runtime.errors import NotFoundError, StalePlanError
from tests.job_manager.builders import Play, running, spec

ONE, TWO = "j000001", "j000002"


def test_transitions_outside_the_table_are_refused() -> None:
    for before, after in TRANSITIONS.items():
        for state in JobState:
            allowed = state in after or (state is before and not before.final)
            if allowed:
                check_transition(before, state)
            else:
                with pytest.raises(IllegalTransitionError):
                    check_transition(before, state)


def test_admission_fills_all_places_at_once_in_order() -> None:
    play = Play(Policy(max_parallel=2))
    play.submit(spec(), spec(), spec(), spec())
    assert [job.state for job in play.world.jobs.values()] == [JobState.WAITING] * 2 + [JobState.QUEUED] * 2
    play(Cancelled(ONE))
    play(Cancelled(TWO))
    assert play.job(ONE).state is JobState.CANCELLED
    assert [job.state for job in play.world.jobs.values()] == [JobState.WAITING] * 2


def test_start_confirm_and_complete() -> None:
    play = Play()
    play.idle("a", "b")
    play.submit(spec())
    play.plan(j1="a b")
    job = play.job()
    assert job.state is JobState.STARTING
    assert list(play.effects) == [StartSupervisor(ONE, 1)]
    play.confirm()
    assert play.job().state is JobState.RUNNING
    assert play.job().confirmed == ("a", "b")
    assert not play.effects
    play.end(outcome=Outcome.EXITED, completion=Completion(640, {"accuracy": 0.9}))
    job = play.job()
    assert (job.state, job.samples, job.metrics) == (JobState.COMPLETED, 640, {"accuracy": 0.9})
    assert job.held == job.commanded == job.wanted == ()


def test_a_change_in_flight_is_confirmed_before_the_next() -> None:
    play = running("a", spare="b c")
    play.plan(j1="a b")
    assert play.effects == (SetHosts(ONE, 1, 2, ("a", "b")),)
    play.plan(j1="a b c")
    assert play.job().commanded == ("a", "b")
    assert play.job().wanted == ("a", "b", "c")
    play.confirm()
    assert play.job().commanded == ("a", "b", "c")
    play.confirm()
    assert play.job().state is JobState.RUNNING
    assert play.job().rescales == 2


def test_growth_waits_until_the_shrinking_job_has_let_go() -> None:
    play = running("a b", spec(), spec(), spare="c")
    play.plan(j2="c")
    play.confirm(TWO)
    step = play.plan(j1="a", j2="b c")
    assert step.rescaled == (ONE, TWO)
    assert play.job(ONE).commanded == ("a",)
    assert play.job(TWO).commanded == ("c",)
    play.confirm(ONE, occupied="a b")
    assert play.job(TWO).commanded == ("c",), "a worker lingers on b"
    assert ReleaseHosts(ONE, 1, ("b",), 1.5) in play.effects
    play.released("b")
    assert set(play.job(TWO).commanded) == {"b", "c"}


def test_a_plan_for_no_nodes_stops_the_job_and_frees_its_nodes_at_the_end() -> None:
    play = running("a b", spec(), spec())
    play.plan(j1="", j2="a b")
    assert play.job(ONE).state is JobState.STOPPING
    assert play.effects == (StopSupervisor(ONE, 1, 5.0),)
    assert play.job(TWO).state is JobState.WAITING
    play.end(ONE, outcome=Outcome.STOPPED)
    assert play.job(ONE).state is JobState.WAITING
    assert play.job(TWO).state is JobState.STARTING


def test_leave_releases_the_node_first_and_tells_when_it_was_free() -> None:
    play = running("a b c")
    play.leave("b")
    job = play.job()
    assert job.state is JobState.RESCALING
    assert job.wanted == job.commanded == job.confirmed == ("a", "c")
    assert "b left" in job.reason
    assert job.preemptions == 1
    assert play.effects == (ReleaseHosts(ONE, 1, ("b",), 1.5), SetHosts(ONE, 1, 2, ("a", "c")))
    play.now += 0.25
    play.released("b")
    assert play.events[-1].release_seconds == pytest.approx(0.25)
    assert play.job().held == ("a", "c")
    play.confirm()
    assert play.job().state is JobState.RUNNING


def test_leave_below_the_smallest_scale_releases_first_and_stops_the_rest() -> None:
    play = running("a b c", spec(3, 4))
    play.leave("a")
    assert play.job().state is JobState.STOPPING
    assert play.effects == (ReleaseHosts(ONE, 1, ("a",), 1.5), StopSupervisor(ONE, 1, 5.0))
    with pytest.raises(StalePlanError, match=r"a \(for job j000001\) is not idle"):
        play.plan(j1="a b c")
    play.join("a")
    with pytest.raises(StalePlanError, match="still being released"):
        play.plan(j1="a b c")
    play.released("a")
    play.plan(j1="a b c")
    assert play.job().state is JobState.STOPPING
    play.end(outcome=Outcome.STOPPED)
    job = play.job()
    assert job.state is JobState.STARTING
    assert (job.restarts, job.incarnation) == (0, 2)


def test_leave_shrinks_to_a_permitted_scale() -> None:
    play = running("a b c d", spec(1, 4, permitted_nodes=(1, 2, 4)))
    play.leave("a")
    assert play.job().commanded == ("b", "c")
    play.released("a")
    play.confirm()
    assert play.job().held == ("b", "c")


def test_leave_of_all_nodes_with_state_restarts_on_the_newcomers() -> None:
    play = running("a", spare="b c")
    play.plan(j1="a b c")
    play.leave("a")
    assert play.job().stop is StopIntent.WAIT
    play.end()
    job = play.job()
    assert job.state is JobState.STARTING
    assert job.commanded == ("b", "c")
    assert job.restarts == 0


def test_leave_of_a_node_that_is_only_wanted() -> None:
    play = running("a b", spec(), spec(1, 1), spare="c")
    play.plan(j2="c")
    play.confirm(TWO)
    play.plan(j1="a b c", j2="")
    play.leave("c")
    assert play.job(ONE).wanted == ("a", "b")
    assert play.job(ONE).state is JobState.RUNNING
    assert ReleaseHosts(TWO, 1, ("c",), 1.5) in play.effects


def test_nodes_missing_after_a_reconnect_have_left() -> None:
    play = running("a b")
    play.idle("b", "c")
    assert play.job().commanded == ("b",)
    assert "a left" in play.job().reason


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
    play = running("a b", spec(), spec(1, 2), spec(), policy=Policy(max_parallel=2), spare="c d")
    before = play.world
    with pytest.raises(StalePlanError, match=message):
        play.plan(**assignments)
    assert play.world == before


def test_generations_only_grow() -> None:
    play = running("a b")
    step = play.plan(j1="a")
    with pytest.raises(StalePlanError, match="expected above 2"):
        play(PlanReceived(step.world.generation, ()))


def test_failures_back_off_and_end_as_failed_with_the_log() -> None:
    play = running("a", spec(max_restarts=2))
    for restart, pause in ((1, 1.0), (2, 2.0)):
        play.end()
        job = play.job()
        assert job.state is JobState.WAITING
        assert job.not_before == play.now + pause
        assert f"restart {restart} of 2" in job.reason
        with pytest.raises(StalePlanError, match="gets no nodes for another"):
            play.plan(j1="a")
        play.wait(pause)
        assert play.job().not_before is None
        play.plan(j1="a")
        play.confirm()
    play.end(log_tail=("n1 | Traceback", "n1 | ValueError: lr"))
    job = play.job()
    assert (job.state, job.restarts) == (JobState.FAILED, 2)
    assert "rank 0 died" in job.reason
    assert job.reason.endswith("n1 | Traceback\nn1 | ValueError: lr")


def test_exit_without_completion_is_a_failure() -> None:
    play = running("a")
    play.end(outcome=Outcome.EXITED, message="")
    assert play.job().restarts == 1
    assert "exited without saying that it is done" in play.job().reason


def test_a_long_good_run_forgives_failures() -> None:
    play = running("a")
    play.end()
    play.wait(1)
    play.plan(j1="a")
    play.confirm()
    play.wait(600)
    assert (play.job().strikes, play.job().restarts) == (0, 1)


def test_a_failure_during_a_preemption_is_not_the_jobs() -> None:
    play = running("a b")
    play.leave("b")
    play.end()
    job = play.job()
    assert job.state is JobState.STARTING
    assert (job.restarts, job.commanded) == (0, ("a",))


def test_target_reached() -> None:
    play = running("a", spec(target_samples=100))
    play(Progressed(ONE, 99, stalled=False))
    assert play.job().state is JobState.RUNNING
    play(Progressed(ONE, 104, stalled=False))
    assert play.job().stop is StopIntent.COMPLETE
    play.end(outcome=Outcome.STOPPED)
    assert (play.job().state, play.job().samples) == (JobState.COMPLETED, 104)


def test_stalled_job_restarts_on_its_nodes() -> None:
    play = running("a b", policy=Policy(stall_seconds=20))
    play(Progressed(ONE, 10, stalled=True))
    play.wait(19)
    assert play.job().state is JobState.RUNNING
    play.wait(1)
    assert play.job().stop is StopIntent.RESTART
    assert "stalled for 20 s" in play.job().reason
    play.end()
    job = play.job()
    assert (job.state, job.restarts, job.commanded) == (JobState.STARTING, 1, ("a", "b"))


def test_a_stall_that_ends_is_forgotten() -> None:
    play = running("a", policy=Policy(stall_seconds=20))
    play(Progressed(ONE, 10, stalled=True))
    play.wait(10)
    play(Progressed(ONE, 20, stalled=False))
    play.wait(15)
    assert play.job().state is JobState.RUNNING


def test_a_job_that_trains_on_waits_longer_for_its_newcomers() -> None:
    play = running("a", spare="b")
    play.plan(j1="a b")
    play.wait(299)
    assert play.job().state is JobState.RESCALING
    play.wait(1)
    assert play.job().stop is StopIntent.RESTART


def test_unconfirmed_changes_time_out() -> None:
    play = running("a", spare="b")
    play.plan(j1="a b")
    play(Progressed(ONE, 10, stalled=True))
    play.wait(59)
    assert play.job().state is JobState.RESCALING
    play.wait(1)
    assert play.job().stop is StopIntent.RESTART
    play.end()
    assert play.job().state is JobState.STARTING
    assert play.job().restarts == 1


def test_a_trainer_that_is_done_but_does_not_end() -> None:
    play = running("a")
    play(TrainerDone(ONE))
    play.wait(9)
    assert play.job().stop is None
    play.wait(1)
    assert play.job().stop is StopIntent.COMPLETE


def test_cancel() -> None:
    play = running("a")
    play(Cancelled(ONE))
    assert play.job().state is JobState.STOPPING
    with pytest.raises(StalePlanError, match="is ending"):
        play.plan(j1="a")
    play.end(outcome=Outcome.STOPPED)
    assert play.job().state is JobState.CANCELLED
    with pytest.raises(NotFoundError):
        play(Cancelled(ONE))


def test_lost_workers_are_a_rescale_that_was_not_commanded() -> None:
    play = running("a b")
    job = play.job()
    play(SupervisorSeen(ONE, 1, job.sequence, job.sequence, frozenset("a"), frozenset("a")))
    assert play.job().state is JobState.RESCALING
    assert "workers were lost, on: b" in play.job().reason
    play.confirm()
    assert play.job().state is JobState.RUNNING


def test_old_supervisors_are_ignored() -> None:
    play = running("a")
    before = play.world
    play(SupervisorSeen(ONE, 7, 9, 9, frozenset("a"), frozenset("a")))
    assert play.world == before


def test_trainers_are_told_of_changes() -> None:
    play = running("a b", spare="c")
    assert play.plan(j1="a b c").notices == ((ONE, Notice.RESCALE_COMING),)
    play.confirm()


def test_shutdown_stops_everything_and_starts_nothing() -> None:
    play = running("a", spec(), spec(1, 1))
    play.plan(j1="", j2="a")
    play(Shutdown())
    play.end(ONE, outcome=Outcome.STOPPED)
    assert [job.state for job in play.world.jobs.values()] == [JobState.WAITING] * 2


def test_a_move_over_a_scale_that_is_not_permitted_goes_over_a_restart() -> None:
    play = running("a b", spec(2, 4, permitted_nodes=(2, 4)), spec(), spare="c d")
    play.plan(j2="c d")
    play.confirm(TWO)
    play.plan(j1="a b c d", j2="")
    play.plan(j1="a c")
    assert play.job(ONE).stop is StopIntent.WAIT
    assert play.job(ONE).wanted == ("a", "c")
    play.end(ONE, outcome=Outcome.STOPPED)
    play.end(TWO, outcome=Outcome.STOPPED)
    assert play.job(ONE).commanded == ("a", "c")


def test_a_leave_while_the_world_re_forms_does_not_count_as_a_loss_of_state() -> None:
    play = running("a b c")
    play.plan(j1="a b")
    play(SupervisorSeen(ONE, 1, 2, 1, frozenset(), frozenset("abc")))
    assert play.job().confirmed == ()
    play.leave("b")
    assert (play.job().state, play.job().commanded) == (JobState.RESCALING, ("a",))
