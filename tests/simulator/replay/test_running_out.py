"""Jobs that run out: built-in sets begin again, and U of a set of one's own is of the time in which there was work."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from malletrain.simulator.replay.arrivals import Arrivals
from malletrain.simulator.replay.evaluation import (
    Evaluation,
    Scenario,
    evaluate,
    free_options,
    outcome_of,
    static_outcome,
)
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import Accounting, ReplayEngine, ReplayOptions
from malletrain.simulator.replay.presets import MODELS, PRESETS, preset_workload
from malletrain.simulator.services.engine import run_services_replay
from tests.simulator.replay.builders import Case, cases, idle, trainer

HOUR_S = 3600.0
STATIC = idle({f"n{index}": [(0, 1000)] for index in range(4)}, 1000.0)
ENGINES = {ReplayEngine.FAST: run_replay, ReplayEngine.SERVICES: run_services_replay}


def idle_machine(nodes: int, hours: float) -> Scenario:
    """Nodes that are idle all the time."""
    return Scenario.of(
        idle({f"n{index}": [(0, hours * HOUR_S)] for index in range(nodes)}, hours * HOUR_S), hours * HOUR_S
    )


def on_idle_machine(preset: str, nodes: int, hours: float) -> Evaluation:
    work = preset_workload(preset)
    options = ReplayOptions(duration_s=hours * HOUR_S, repeat_jobs=work.repeats)
    return evaluate(idle_machine(nodes, hours), work.jobs, options)


@settings(deadline=None, max_examples=15)
@given(preset=st.sampled_from(PRESETS), nodes=st.integers(1, 40), hours=st.floats(1.0, 300.0))
@example("hpo", 100, 400.0)
@example("imagenet", 1, 8760.0)
@example("hpo", 500, 24.0)
def test_a_machine_that_is_idle_without_events_is_used_like_one_of_ones_own(
    preset: str, nodes: int, hours: float
) -> None:
    metrics = on_idle_machine(preset, nodes, hours).metrics
    assert metrics.zero_cost_bound == pytest.approx(1.0)
    # The first jobs come one after the other, and each time others are rescaled. Of several models, other jobs are
    # there at the end than with free rescaling: that can be a gain.
    starts = 0.15 / hours
    assert abs(metrics.utilization_efficiency - 1.0) < 0.07 + starts
    assert metrics.queue_empty_hours is None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per_owner", [0, 1])
def test_a_repeated_set_is_the_set_written_down_several_times(engine: ReplayEngine, per_owner: int) -> None:
    jobs = [trainer("a", samples=300.0), trainer("b", samples=700.0, submit_s=40.0, model="other")]
    again = [replace(job, id=f"{job.id}#{turn}", submit_s=40.0) for turn in range(1, 40) for job in jobs]
    options = ReplayOptions(duration_s=1000.0, max_parallel=2, max_parallel_per_owner=per_owner, engine=engine)
    events, run = Case(STATIC, (), options).events(), ENGINES[engine]
    repeated = run(events, STATIC.nodes, jobs, replace(options, repeat_jobs=True))
    written = run(events, STATIC.nodes, [*jobs, *again], options)
    assert repeated.jobs == written.jobs
    assert len(repeated.jobs) > 8
    assert repeated.queue_empty is None


def test_nobody_makes_jobs_of_a_repeated_set_that_nobody_asks_for() -> None:
    arrivals = Arrivals(
        [trainer("a", submit_s=5.0), trainer("b", submit_s=7.0)], ReplayOptions(duration_s=1.0, repeat_jobs=True)
    )
    assert [list(arrivals.take_submitted(4.0)), arrivals.next_submit_s] == [[], 5.0]
    assert [(job.id, job.submit_s) for job in islice(arrivals.take_submitted(1e9), 5)] == [
        ("a", 5.0),
        ("b", 7.0),
        ("a#1", 7.0),
        ("b#1", 7.0),
        ("a#2", 7.0),
    ]
    assert not arrivals.over
    assert arrivals.next_submit_s == 7.0


@settings(deadline=None, max_examples=150)
@given(case=cases())
def test_what_is_known_of_the_moment_the_queue_ran_empty_is_what_a_replay_until_then_gives(case: Case) -> None:
    result = case.run_replay()
    empty = result.queue_empty
    ended = [job.ended_s for job in result.jobs]
    left = len(case.jobs) - sum(end is not None for end in ended)
    if empty is None:
        assert len(result.jobs) < len(case.jobs) or left >= min(case.options.max_parallel, len(case.jobs))
        return
    assert len(result.jobs) == len(case.jobs), "all have come"
    assert max(job.admitted_s for job in result.jobs) <= empty.time_s
    assert sum(end is None or end > empty.time_s for end in ended) < min(case.options.max_parallel, len(case.jobs))
    shorter = replace(case, options=replace(case.options, duration_s=empty.time_s))
    if case.options.accounting is Accounting.EVENT:  # else, what ends at that very moment is past its end before
        assert outcome_of(shorter.run_replay()) == pytest.approx(empty.outcome)


SHORT = tuple(trainer(f"j{number}", samples=400.0, up_s=0.0, most=2) for number in range(4))


@pytest.mark.parametrize("engine", ENGINES)
def test_u_of_a_set_of_ones_own_is_of_the_time_until_the_queue_ran_empty(engine: ReplayEngine) -> None:
    """Four jobs of 400 samples, two at a time on four nodes: 2 samples/s each, so that all is done after 400 s."""
    scenario = Scenario.of(STATIC, 1000.0)
    options = ReplayOptions(duration_s=1000.0, max_parallel=2, commit_s=0.0, engine=engine)
    found = evaluate(scenario, SHORT, options)
    metrics = found.metrics
    assert metrics.queue_empty_hours == pytest.approx(400.0 / 3600, abs=1e-3)
    assert metrics.work_ended_hours == pytest.approx(400.0 / 3600, abs=1e-3)
    assert metrics.utilization_efficiency == pytest.approx(1.0, abs=5e-3)
    assert metrics.zero_cost_bound == pytest.approx(1.0)
    assert metrics.resource_integral_node_hours == pytest.approx(4000 / 3600), "of the whole trace"
    assert metrics.work_in_words(1000.0) == (
        "No work left from hour 0.11 of 0.28 on; U is of the first 0.11 h, until the queue ran empty."
    )
    assert evaluate(scenario, SHORT, replace(options, repeat_jobs=True)).metrics.work_in_words(1000.0) == ""


def test_a_job_that_goes_on_alone_is_no_reason_to_call_nodes_badly_used() -> None:
    jobs = (*SHORT, trainer("long", samples=1e9, most=1))
    metrics = evaluate(Scenario.of(STATIC, 1000.0), jobs, ReplayOptions(duration_s=1000.0, max_parallel=2)).metrics
    assert metrics.queue_empty_hours is not None
    assert metrics.work_ended_hours is None
    assert metrics.utilization_efficiency > 0.95
    assert metrics.work_in_words(1000.0).startswith("Fewer jobs than could train at once from hour 0.1")


def test_a_set_smaller_than_the_places_is_compared_with_as_many_at_once_as_it_has() -> None:
    alone = (trainer("a", rates=[10.0, 20.0], most=2),)
    options = ReplayOptions(duration_s=1000.0, max_parallel=10)
    assert static_outcome(alone, 4, options) == 20.0 * 1000
    found = evaluate(Scenario.of(STATIC, 1000.0), alone, options)
    assert found.metrics.utilization_efficiency == pytest.approx(0.997)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), count=st.integers(1, 6), parallel=st.integers(1, 4))
def test_u_is_at_most_its_bound_whether_or_not_work_runs_out(data: st.DataObject, count: int, parallel: int) -> None:
    """On nodes that stay, jobs of one model: free rescaling is as good as it gets, until any moment."""
    samples = data.draw(st.lists(st.sampled_from([100.0, 1000.0, 4000.0]), min_size=count, max_size=count))
    jobs = [trainer(f"j{place}", rates=[1.0, 2.0, 3.0, 4.0], samples=each) for place, each in enumerate(samples)]
    metrics = evaluate(
        Scenario.of(STATIC, 1000.0), jobs, ReplayOptions(duration_s=1000.0, max_parallel=parallel)
    ).metrics
    assert metrics.zero_cost_bound is not None
    assert 0 < metrics.utilization_efficiency <= metrics.zero_cost_bound + 1e-9
    assert metrics.zero_cost_bound == pytest.approx(1.0)


def test_a_year_of_repeated_jobs_makes_as_many_as_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    original = Arrivals.job_of_turn

    def counted(self: Arrivals, job: ReplayJob, turn: int) -> ReplayJob:
        made.append(job.id)
        return original(self, job, turn)

    monkeypatch.setattr(Arrivals, "job_of_turn", counted)
    scenario, work = idle_machine(3, 8760.0), preset_workload("imagenet")
    options = free_options(ReplayOptions(duration_s=scenario.duration_s, repeat_jobs=True, max_parallel=3))
    result = run_replay(scenario.events, scenario.nodes, work.jobs, options)
    assert len(result.jobs) == len(made) > len(MODELS) * 100
