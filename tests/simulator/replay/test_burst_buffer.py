"""Burst buffer in a replay: both engines admit as JobManager does, and the quota holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.job_manager.machine.admission import AdmissionRule
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.evaluation import Scenario, burst_buffer_figures, evaluate
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayEngine, ReplayOptions
from malletrain.simulator.replay.records import ReplayResult
from malletrain.simulator.services.engine import run_services_replay, services_options
from tests.simulator.replay.builders import STAYS, Case, idle, idle_traces, trainer, trainers

FOUR_NODES = idle({f"n{index}": [(0, STAYS)] for index in range(4)}, 1000.0)
SOON_S = 1.0
"""The services engine does not notice an end at once."""
ENGINES = pytest.mark.parametrize("engine", list(ReplayEngine))


def run(case: Case, engine: ReplayEngine) -> ReplayResult:
    if engine is ReplayEngine.FAST:
        return case.run_replay()
    checked = replace(services_options(case.options, case.jobs), validate=True)
    return run_services_replay(case.events(), case.trace.nodes, case.jobs, case.options, settings=checked)


def asking(name: str, gb: int, samples: float = 400.0, submit_s: float = 0.0) -> ReplayJob:
    """A job that takes 100 s on a node and no time to start."""
    job = trainer(name, rates=[4.0], samples=samples, submit_s=submit_s, up_s=0.0, down_s=0.0, most=1)
    return replace(job, burst_buffer_gb=gb)


def admissions(result: ReplayResult) -> dict[str, float]:
    return {record.job: record.admitted_s for record in result.jobs}


@ENGINES
def test_first_come_first_served_and_nobody_without_a_request_waits(engine: ReplayEngine) -> None:
    jobs = (asking("a", 3), asking("b", 3, 800.0), asking("c", 0), asking("d", 1), asking("e", 0, submit_s=50.0))
    options = ReplayOptions(duration_s=900.0, commit_s=0.0, burst_buffer_gb=4)
    found = admissions(run(Case(FOUR_NODES, jobs, options), engine))
    assert found == pytest.approx({"a": 0.0, "c": 0.0, "b": 100.0, "d": 100.0, "e": 50.0}, abs=SOON_S)


@ENGINES
@pytest.mark.parametrize(("bound", "passed"), [(1, 1), (3, 3)])
def test_a_window_passes_a_job_over_as_often_as_it_may(engine: ReplayEngine, bound: int, passed: int) -> None:
    """Requests of 2 come every 50 s and stay for 100 s, so that 4 are never free of themselves."""
    small = [asking(f"s{index}", 2, submit_s=50.0 * index + 10.0) for index in range(1, 9)]
    jobs = (asking("first", 2), asking("big", 4, submit_s=10.0), *small)
    options = ReplayOptions(
        duration_s=900.0, commit_s=0.0, burst_buffer_gb=4, admission=AdmissionRule.WINDOW, starvation_bound=bound
    )
    found = admissions(run(Case(FOUR_NODES, jobs, options), engine))
    assert sum(when < found["big"] for name, when in found.items() if name.startswith("s")) == passed


@settings(deadline=None, max_examples=40)
@given(data=st.data(), trace=idle_traces(), rule=st.sampled_from(AdmissionRule), places=st.integers(1, 3))
def test_the_quota_holds_in_both_engines(data: st.DataObject, trace: Trace, rule: AdmissionRule, places: int) -> None:
    jobs = [
        replace(
            data.draw(trainers(f"j{index}")),
            burst_buffer_gb=data.draw(st.sampled_from([0, 1, 2, 4])),
            owner=data.draw(st.sampled_from(["ada", "bob"])),
        )
        for index in range(data.draw(st.integers(1, 6)))
    ]
    options = ReplayOptions(
        duration_s=77.0, max_parallel=places, burst_buffer_gb=4, admission=rule, window=3, starvation_bound=2
    )
    case = Case(trace, tuple(sorted(jobs, key=lambda job: job.submit_s)), options)
    amounts = {job.id: job.burst_buffer_gb for job in jobs}
    for engine in ReplayEngine:
        records = run(case, engine).jobs
        for record in records:
            others = [
                other
                for other in records
                if other.admitted_s <= record.admitted_s < (77.0 if other.ended_s is None else other.ended_s)
            ]
            assert sum(amounts[other.job] for other in others) <= 4


@ENGINES
def test_enough_of_it_is_as_if_nobody_asked(engine: ReplayEngine) -> None:
    jobs = tuple(asking(f"j{index}", index % 3, submit_s=10.0 * index) for index in range(12))
    options = ReplayOptions(duration_s=900.0, commit_s=0.0, max_parallel=3)
    plain = run(Case(FOUR_NODES, tuple(replace(job, burst_buffer_gb=0) for job in jobs), options), engine)
    granted = run(Case(FOUR_NODES, jobs, replace(options, burst_buffer_gb=6)), engine)
    assert admissions(granted) == pytest.approx(admissions(plain), abs=SOON_S)


def test_figures_of_a_replay() -> None:
    jobs = (asking("a", 4), asking("b", 2), asking("c", 0, submit_s=10.0), asking("late", 1, submit_s=500.0))
    options = ReplayOptions(duration_s=200.0, commit_s=0.0, burst_buffer_gb=4)
    scenario = Scenario.of(FOUR_NODES, 200.0)
    found = evaluate(scenario, jobs, options)
    assert found.burst_buffer == burst_buffer_figures(jobs, found.result.jobs, 200.0, 4)
    assert found.burst_buffer is not None
    assert found.burst_buffer.burst_buffer_usage == pytest.approx((4 * 100 + 2 * 100) / (4 * 200))
    assert found.burst_buffer.mean_wait_hours_asking == pytest.approx(50.0 / 3600.0)
    assert found.burst_buffer.mean_wait_hours_others == 0.0
    plain = tuple(replace(job, burst_buffer_gb=0) for job in jobs)
    without = evaluate(scenario, plain, options)
    assert without.burst_buffer is None
    assert without.metrics.zero_cost_bound == found.metrics.zero_cost_bound, "the bound knows no quota"


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"burst_buffer_gb": -1}, "--burst-buffer"),
        ({"window": 0}, "--window"),
        ({"window": 33}, "--window"),
        ({"starvation_bound": 0}, "--starvation-bound"),
        ({"admission": AdmissionRule.WINDOW, "max_parallel": 10**7}, "--max-parallel"),
    ],
)
def test_options_that_can_not_be_are_refused(changes: dict[str, object], option: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ReplayOptions(duration_s=1.0, **changes)  # type: ignore[arg-type]
    assert caught.value.field == option


def test_a_job_that_asks_for_more_than_the_quota_is_named() -> None:
    options = ReplayOptions(duration_s=100.0, burst_buffer_gb=4)
    with pytest.raises(InvalidInputError, match=r"at least 5 .* which job b asks for, got 4"):
        evaluate(Scenario.of(FOUR_NODES, 100.0), (asking("a", 1), asking("b", 5)), options)
