"""The services engine of a replay: the fast engine's figures, JobManager's invariants, the same result every time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob, read_job_set
from malletrain.simulator.replay.options import Accounting, ReplayEngine, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import ReplayResult
from malletrain.simulator.services.engine import run_services_replay, services_options
from tests.simulator.replay.builders import STAYS, Case, idle, idle_traces, trainer, trainers
from tests.support.shared import shared_path

HOURS = 4.0
NODES = 1024
AGREEMENT = 0.01


@pytest.fixture(scope="module")
def summit() -> Scenario:
    trace = read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))
    return Scenario.of(window(trace, 0.0, HOURS * 3600.0, NODES), HOURS * 3600.0)


def job_set(name: str) -> tuple[ReplayJob, ...]:
    return read_job_set(shared_path(f"jobs/{name}"), shared_path("jobs/scaling.csv"))


def samples(result: ReplayResult) -> float:
    return sum(job.samples for job in result.jobs)


@pytest.mark.parametrize(
    ("jobs", "cost_model"),
    [
        ("hpo-shufflenet-1000.csv", CostModel.STALL),
        ("hpo-shufflenet-1000.csv", CostModel.PAPER),
        ("imagenet-mix-1001.csv", CostModel.STALL),
    ],
)
def test_both_engines_agree_on_the_summit_log(summit: Scenario, jobs: str, cost_model: CostModel) -> None:
    options = ReplayOptions(duration_s=summit.duration_s, cost_model=cost_model)
    fast = run_replay(summit.events, summit.nodes, job_set(jobs), options)
    services = run_services_replay(summit.events, summit.nodes, job_set(jobs), options)
    assert samples(services) == pytest.approx(samples(fast), rel=AGREEMENT)
    assert services.node_events == fast.node_events
    assert services.decisions["node_event"].sum() == fast.node_events
    done = [sum(job.ended_s is not None for job in result.jobs) for result in (fast, services)]
    assert done[1] == pytest.approx(done[0], abs=1)
    held = [sum(job.node_seconds for job in result.jobs) for result in (fast, services)]
    assert held[1] == pytest.approx(held[0], rel=AGREEMENT)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small replays that both engines can run."""
    jobs = [draw(trainers(f"j{index}")) for index in range(draw(st.integers(1, 5)))]
    options = ReplayOptions(
        duration_s=float(draw(st.sampled_from([33, 77, 120]))),
        forward_s=float(draw(st.sampled_from([2, 20, 120]))),
        max_parallel=draw(st.integers(1, 3)),
        cost_model=draw(st.sampled_from(CostModel)),
        free=draw(st.sampled_from([False, False, True])),
    )
    return Case(draw(idle_traces()), tuple(sorted(jobs, key=lambda job: job.submit_s)), options)


@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_no_invariant_breaks_and_ticks_that_are_left_out_make_no_difference(case: Case) -> None:
    nodes, options = case.trace.nodes, case.options
    checked = replace(services_options(options, case.jobs), validate=True)
    result = run_services_replay(case.events(), nodes, case.jobs, options, settings=checked)
    ticking = replace(checked, every_tick=True)
    again = run_services_replay(case.events(), nodes, case.jobs, options, settings=ticking)
    assert result.jobs == again.jobs
    assert all(values.tobytes() == again.decisions[name].tobytes() for name, values in result.decisions.items())
    assert (result.decisions["used"] <= result.decisions["pool"]).all()
    by_id = {job.id: job for job in case.jobs}
    for record in result.jobs:
        assert record.samples <= by_id[record.job].samples
        assert record.admitted_s >= record.submit_s


def test_a_replay_by_hand() -> None:
    """As `fast_engine` does it, 0.05 s later: that long plans wait for further events."""
    trace = idle({"n0": [(0, STAYS)], "n1": [(50, 80)]})
    options = ReplayOptions(duration_s=100.0, commit_s=0.0)
    result = run_services_replay(Case(trace, (), options).events(), trace.nodes, [trainer()], options)
    (job,) = result.jobs
    start, growth, shrink = 0.05 + 3, 50.05 + 3, 80 + 2
    assert job.samples == pytest.approx((50.05 - start) * 1 + (80 - growth) * 2 + (100 - shrink) * 1)
    assert job.node_seconds == pytest.approx(99.95 + 29.95)
    assert (job.preemptions, job.rescales, job.started_s) == (1, 2, 0.05)
    assert result.decisions["time_s"].tolist() == [0.0, 0.05, 50.0, 50.05, 80.0]
    assert result.decisions["preempted"].tolist() == [0, 0, 0, 0, 1]
    assert result.decisions["used"].tolist() == [0, 1, 1, 2, 1]


def test_new_workers_boot_while_the_others_train_on() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(50, STAYS)]})
    options = ReplayOptions(duration_s=100.0, commit_s=0.0)
    job = replace(trainer(), boot_s=10.0)
    result = run_services_replay(Case(trace, (), options).events(), trace.nodes, [job], options)
    start, growth = 0.05 + 3, 50.05 + 10
    assert result.jobs[0].samples == pytest.approx((growth - start) * 1 + (100 - growth - 3) * 2)
    assert result.jobs[0].node_seconds == pytest.approx(99.95 + 49.95)
    assert result.decisions["time_s"].tolist() == [0.0, 0.05, 50.0, 60.05]


def test_a_node_that_leaves_while_it_boots_ends_the_growth() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(50, 55)]})
    options = ReplayOptions(duration_s=100.0, commit_s=0.0)
    job = replace(trainer(down_s=2.0), boot_s=10.0)
    result = run_services_replay(Case(trace, (), options).events(), trace.nodes, [job], options)
    assert result.jobs[0].samples == pytest.approx((55 - 3.05) * 1 + (100 - 57) * 1)


def test_plans_learn_how_long_workers_boot_as_in_production() -> None:
    """A growth pays for T_fwd = 20 s only as long as nothing is known of the 9 s that its workers boot."""
    trace = idle({"n0": [(0, STAYS)], "n1": [(50, 80), (90, STAYS)]})
    options = ReplayOptions(duration_s=150.0, commit_s=0.0, forward_s=20.0)
    job = trainer(rates=[10.0, 13.0], up_s=3.0)
    scales = {}
    for boot_s in (0.0, 9.0):
        result = run_services_replay(
            Case(trace, (), options).events(), trace.nodes, [replace(job, boot_s=boot_s)], options
        )
        scales[boot_s] = result.decisions["used"].tolist()[-1]
    assert scales == {0.0: 2, 9.0: 1}


def test_a_growth_waits_until_the_rescale_before_it_is_confirmed() -> None:
    """The fast engine makes one rescale of both."""
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, 50)], "n2": [(51, STAYS)]})
    options = ReplayOptions(duration_s=100.0, commit_s=0.0)
    result = run_services_replay(Case(trace, (), options).events(), trace.nodes, [trainer(down_s=6.0)], options)
    (job,) = result.jobs
    assert job.samples == pytest.approx((50 - 3.05) * 2 + (100 - 56 - 3) * 2)


def test_jobs_end_and_the_next_ones_are_admitted() -> None:
    trace = idle({"n0": [(0, STAYS)]})
    jobs = [trainer(name, samples=20.0, up_s=1.0) for name in "abcdefg"]
    options = ReplayOptions(duration_s=100.0, max_parallel=1)
    result = run_services_replay(Case(trace, (), options).events(), trace.nodes, jobs, options)
    assert [job.job for job in result.jobs] == ["a", "b", "c", "d", "e"]
    assert [job.ended_s for job in result.jobs] == pytest.approx([21.05, 42.1, 63.15, 84.2, None])
    assert result.decisions["ended"].sum() == 4


def test_an_evaluation_with_the_services_engine() -> None:
    scenario = Scenario.of(idle({"a": [(0, STAYS)], "b": [(0, 60)]}), 120.0)
    jobs = [trainer(rates=[10.0, 20.0])]
    options = ReplayOptions(duration_s=120.0, commit_s=0.0, engine=ReplayEngine.SERVICES)
    metrics = evaluate(scenario, jobs, options).metrics
    fast = evaluate(scenario, jobs, replace(options, engine=ReplayEngine.FAST)).metrics
    assert metrics.samples == pytest.approx(fast.samples, rel=AGREEMENT)
    assert metrics.static_outcome == fast.static_outcome
    assert metrics.zero_cost_bound == fast.zero_cost_bound


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ({"policy": ReplayPolicy.EQUAL}, "--policy"),
        ({"accounting": Accounting.PAPER}, "--accounting"),
        ({"paper_quirks": True}, "--paper-quirks"),
    ],
)
def test_what_only_the_fast_engine_can_do_is_refused(option: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ReplayOptions(duration_s=100.0, engine=ReplayEngine.SERVICES, **option)
    assert caught.value.field == field
