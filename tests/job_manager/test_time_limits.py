"""When a time limit is next exceeded is when JobManager's tick changes something, and never before."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from malletrain.common.job_limits import JobLimits
from malletrain.job_manager.machine.job_table import JobTable
from malletrain.job_manager.machine.jobs import Job, ScaleFault, StopIntent
from malletrain.job_manager.machine.state import ManagerPolicy, ManagerState
from malletrain.job_manager.machine.time_limits import check_time_limits, next_limit
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.model.job_state import JobState
from tests.support.builders import job_spec

NOW = 10_000
POLICY = ManagerPolicy()
PAST = st.none() | st.integers(NOW - 2000, NOW).map(float)
COMING = st.none() | st.integers(NOW, NOW + int(POLICY.restart_backoff_max_seconds)).map(float)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    limits = JobLimits(
        *(draw(st.sampled_from([0.0, 30.0, 700.0])) for _ in ("start", "step", "evaluation", "save")),
    )
    state = draw(st.sampled_from([JobState.RUNNING, JobState.RESCALING, JobState.STARTING, JobState.WAITING]))
    supervised = state is not JobState.WAITING
    nodes = draw(st.sampled_from([("n1",), ("n1", "n2")])) if supervised else ()
    job = Job(1, job_spec(limits=limits), state, "-", 0.0, 0.0, commanded=nodes, wanted=nodes, held=nodes)
    phase = draw(st.sampled_from(["", "start", "evaluate", "save", "pause"])) if supervised else ""
    return replace(
        job,
        supervised=supervised,
        stop=draw(st.sampled_from([None, None, StopIntent.WAIT])) if supervised else None,
        confirmed=draw(st.sampled_from([(), nodes[:1], nodes])),
        changed_at=float(draw(st.integers(NOW - 2000, NOW))),
        not_before=draw(COMING),
        done_since=draw(PAST),
        stalled_since=draw(PAST),
        idle_since=draw(PAST),
        deadlocked=draw(st.booleans()),
        phase=phase,
        phase_since=draw(PAST) if phase else None,
        good_since=draw(PAST),
        counted_failures=draw(st.integers(0, 2)),
        scale_since=draw(PAST),
        scale_faults=draw(st.sampled_from([(), (ScaleFault(3, 1, NOW + 50.0),)])),
        good_scales=draw(st.sampled_from([(), (1,), (1, 2)])),
        fleet_number=draw(st.sampled_from([None, 1])),
    )


def changes(job: Job, now: float) -> bool:
    transaction = Transaction(ManagerState(jobs=JobTable.of({job.id: job})), POLICY, now)
    check_time_limits(transaction)
    return bool(transaction.changed)


@given(job=jobs())
def test_a_tick_changes_a_job_from_its_next_limit_on(job: Job) -> None:
    limit = next_limit([job], POLICY)
    for now in {NOW, limit - 1, limit, NOW + 5000} - {inf}:
        if now >= NOW:
            assert changes(job, now) == (now >= limit)


def test_of_several_jobs_the_earliest_counts() -> None:
    waiting = Job(1, job_spec(), JobState.WAITING, "-", 0.0, 0.0, not_before=NOW + 7.0)
    later, never = replace(waiting, number=2, not_before=NOW + 9.0), replace(waiting, number=3, not_before=None)
    assert next_limit([never, later, waiting], POLICY) == NOW + 7.0
    assert next_limit([never], POLICY) == inf
