"""Several owners in a replay: limits hold, who has used less comes first, and one owner notices nothing of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.evaluation import Scenario, evaluate, jain_index, owner_figures
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayEngine, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import ReplayResult
from malletrain.simulator.services.engine import run_services_replay, services_options
from tests.simulator.replay.builders import STAYS, Case, idle, idle_traces, trainer, trainers

FOUR_NODES = idle({f"n{index}": [(0, STAYS)] for index in range(4)}, 1000.0)
ENGINES = pytest.mark.parametrize("engine", list(ReplayEngine))


def run(case: Case, engine: ReplayEngine) -> ReplayResult:
    if engine is ReplayEngine.FAST:
        return case.run_replay()
    checked = replace(services_options(case.options, case.jobs), validate=True)
    return run_services_replay(case.events(), case.trace.nodes, case.jobs, case.options, settings=checked)


@st.composite
def shared_cases(draw: st.DrawFn) -> Case:
    """Small replays with several owners, under any way to share that both engines know."""
    jobs = [
        replace(draw(trainers(f"j{index}")), owner=draw(st.sampled_from(["ada", "bob", "eve"])))
        for index in range(draw(st.integers(1, 6)))
    ]
    options = ReplayOptions(
        duration_s=float(draw(st.sampled_from([33, 77, 120]))),
        forward_s=float(draw(st.sampled_from([20, 120]))),
        max_parallel=draw(st.integers(1, 4)),
        max_parallel_per_owner=draw(st.integers(0, 2)),
        max_nodes_per_owner=draw(st.integers(0, 3)),
        fair_share_half_life_s=float(draw(st.sampled_from([0, 10, 1e6]))),
    )
    return Case(draw(idle_traces()), tuple(sorted(jobs, key=lambda job: job.submit_s)), options)


def max_at_once(result: ReplayResult, duration_s: float) -> Counter[str]:
    """Most jobs of each owner that were admitted at the same time."""
    most: Counter[str] = Counter()
    for record in result.jobs:
        at_once = sum(
            other.owner == record.owner
            and other.admitted_s <= record.admitted_s < (duration_s if other.ended_s is None else other.ended_s)
            for other in result.jobs
        )
        most[record.owner] = max(most[record.owner], at_once)
    return most


@settings(deadline=None, max_examples=60)
@given(case=shared_cases())
def test_limits_hold_in_both_engines_and_no_invariant_breaks(case: Case) -> None:
    for engine in ReplayEngine:
        result = run(case, engine)
        limit = case.options.max_parallel_per_owner or case.options.max_parallel
        assert all(count <= limit for count in max_at_once(result, case.options.duration_s).values())
        for figures in owner_figures(case.jobs, result.jobs, case.options.duration_s):
            nodes = case.options.max_nodes_per_owner or len(case.trace.nodes)
            assert figures.nodes_while_present <= nodes + 1e-9


@settings(deadline=None, max_examples=30)
@given(case=shared_cases())
def test_ticks_that_are_left_out_make_no_difference_to_owners(case: Case) -> None:
    chosen = services_options(case.options, case.jobs)
    replays = [
        run_services_replay(case.events(), case.trace.nodes, case.jobs, case.options, settings=settings_of)
        for settings_of in (chosen, replace(chosen, every_tick=True))
    ]
    assert replays[0].jobs == replays[1].jobs


@settings(deadline=None, max_examples=60)
@given(case=shared_cases(), engine=st.sampled_from(ReplayEngine))
def test_one_owner_has_the_same_replay_with_fair_share_and_without(case: Case, engine: ReplayEngine) -> None:
    plain = replace(case.options, max_parallel_per_owner=0, max_nodes_per_owner=0, fair_share_half_life_s=0.0)
    fair = replace(plain, fair_share_half_life_s=10.0)
    jobs = tuple(replace(job, owner="ada") for job in case.jobs)
    without, with_it = (run(Case(case.trace, jobs, options), engine) for options in (plain, fair))
    assert with_it.jobs == without.jobs
    assert all(values.tobytes() == with_it.decisions[name].tobytes() for name, values in without.decisions.items())


def many_and_one() -> tuple[ReplayJob, ...]:
    """ada has twenty jobs from the beginning, and bob one of the same kind from second 100 on."""
    many = [trainer(f"a{index:02d}", samples=200.0, up_s=1.0, down_s=1.0, owner="ada") for index in range(20)]
    return (*many, trainer("b", samples=200.0, submit_s=100.0, up_s=1.0, down_s=1.0, owner="bob"))


def wait_of(result: ReplayResult, job: str) -> float:
    record = next(record for record in result.jobs if record.job == job)
    assert record.started_s is not None
    return record.started_s - record.submit_s


@ENGINES
def test_one_job_does_not_wait_for_all_that_another_owner_has_submitted_before(engine: ReplayEngine) -> None:
    options = ReplayOptions(duration_s=3000.0, max_parallel=2, commit_s=0.0, fair_share_half_life_s=0.0)
    case = Case(FOUR_NODES, many_and_one(), options)
    assert wait_of(run(case, engine), "b") > 400.0
    fair = replace(options, fair_share_half_life_s=1e5)
    assert wait_of(run(replace(case, options=fair), engine), "b") < 110.0
    limited = run(replace(case, options=replace(options, max_parallel_per_owner=1)), engine)
    assert [record.admitted_s for record in limited.jobs if record.job == "b"] == [100.0], "there is a place for bob"


@ENGINES
def test_nodes_go_to_the_owner_who_has_used_less(engine: ReplayEngine) -> None:
    linear = [1.0, 2.0, 3.0, 4.0]
    jobs = (
        trainer("a", rates=linear, up_s=1.0, down_s=1.0, owner="ada"),
        trainer("b", rates=linear, submit_s=100.0, up_s=1.0, down_s=1.0, owner="bob"),
    )
    options = ReplayOptions(duration_s=200.0, commit_s=0.0, fair_share_half_life_s=0.0)
    case = Case(FOUR_NODES, jobs, options)
    ada, bob = run(case, engine).jobs
    assert bob.node_seconds == 0.0
    ada, bob = run(replace(case, options=replace(options, fair_share_half_life_s=1e5)), engine).jobs
    assert bob.node_seconds == pytest.approx(400.0, abs=10.0)
    ada, bob = run(replace(case, options=replace(options, max_nodes_per_owner=3)), engine).jobs
    assert ada.node_seconds == pytest.approx(3 * 200.0, abs=10.0)
    assert bob.node_seconds == pytest.approx(100.0, abs=10.0)


@ENGINES
def test_weights_that_change_lead_to_no_rescale_of_their_own(engine: ReplayEngine) -> None:
    jobs = tuple(trainer(name, rates=[1.0, 2.0], owner=owner) for name, owner in (("a", "ada"), ("b", "bob")))
    case = Case(FOUR_NODES, jobs, ReplayOptions(duration_s=1000.0, commit_s=0.0, fair_share_half_life_s=50.0))
    result = run(case, engine)
    assert [record.rescales for record in result.jobs] == [1, 1]


@pytest.mark.parametrize(("amounts", "expected"), [([5, 5, 5], 1.0), ([9, 0, 0], 1 / 3), ([], 1.0), ([3, 1], 0.8)])
def test_jain_index(amounts: list[float], expected: float) -> None:
    assert jain_index(amounts) == pytest.approx(expected)


def test_the_figures_of_owners() -> None:
    jobs = (
        trainer("a", rates=[1.0], samples=49.0, up_s=1.0, most=1, owner="ada"),
        trainer("b", rates=[1.0], submit_s=10.0, up_s=1.0, most=1, owner="bob"),
        trainer("later", submit_s=500.0, owner="eve"),
    )
    scenario = Scenario.of(idle({"n0": [(0, STAYS)]}), 100.0)
    found = evaluate(scenario, jobs, ReplayOptions(duration_s=100.0, max_parallel=1, commit_s=0.0), bound=False)
    ada, bob = found.owners
    assert (ada.owner, ada.jobs, ada.jobs_completed, ada.samples) == ("ada", 1, 1, 49.0)
    assert (ada.mean_wait_hours, ada.nodes_while_present) == (0.0, pytest.approx(1.0))
    assert ada.mean_turnaround_hours == pytest.approx(50 / 3600)
    assert bob.mean_wait_hours == pytest.approx(40 / 3600)
    assert bob.nodes_while_present == pytest.approx(50 / 90)
    assert bob.mean_turnaround_hours is None
    assert found.jain_index == pytest.approx(jain_index([1.0, 50 / 90]))
    alone = evaluate(scenario, jobs[:1], ReplayOptions(duration_s=100.0), bound=False)
    assert alone.owners == ()


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"max_parallel_per_owner": -1}, "--max-parallel-per-owner"),
        ({"max_nodes_per_owner": -1}, "--max-nodes-per-owner"),
        ({"max_nodes_per_owner": 4, "policy": ReplayPolicy.EQUAL}, "--max-nodes-per-owner"),
        ({"fair_share_half_life_s": -1.0}, "--fair-share-half-life"),
        ({"fair_share_half_life_s": float("nan")}, "--fair-share-half-life"),
    ],
)
def test_options_that_are_wrong_are_named(changes: dict[str, object], option: str) -> None:
    with pytest.raises(InvalidInputError, match=option):
        ReplayOptions(duration_s=10.0, **changes)  # type: ignore[arg-type]
