"""Invariants of every replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.allocator.solvers.placement import Rank, rearrange
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay import fast_engine
from malletrain.simulator.replay.evaluation import Scenario, free_options, outcome_of, static_outcome
from malletrain.simulator.replay.node_events import node_events, resource_integral
from malletrain.simulator.replay.options import Accounting, ReplayOptions, ReplayPolicy
from tests.simulator.replay.builders import STAYS, Case, cases, idle, idle_traces, trainer

Map = list[set[str]]


@settings(deadline=None, max_examples=150)
@given(case=cases())
def test_figures_stay_within_what_there_was(case: Case) -> None:
    result, options = case.run_replay(), case.options
    columns = result.decisions
    assert np.all(np.diff(columns["time_s"]) >= 0)
    assert np.all(columns["time_s"] < options.duration_s)
    assert np.all(columns["active"] <= options.max_parallel)
    assert np.all(columns["running"] <= columns["active"])
    assert np.all(columns["used"] <= columns["pool"])
    offered = 3600.0 * resource_integral(case.events(), options.duration_s)
    assert sum(job.node_seconds for job in result.jobs) <= offered + 1e-6
    demands = {job.id: job for job in case.jobs}
    for record in result.jobs:
        assert record.samples <= demands[record.job].samples
        assert record.submit_s <= record.admitted_s
        assert record.preemption_samples >= 0
        assert record.rescale_samples >= 0
        if record.ended_s is not None:
            assert record.samples == demands[record.job].samples
            assert record.started_s is not None
            assert record.admitted_s <= record.started_s < record.ended_s <= options.duration_s


@settings(deadline=None, max_examples=100)
@given(case=cases())
def test_first_come_first_admitted(case: Case) -> None:
    result = case.run_replay()
    admitted = {record.job: record.admitted_s for record in result.jobs}
    in_order = [admitted.get(job.id, float("inf")) for job in case.jobs]
    assert in_order == sorted(in_order)
    assert result.decisions["admitted"].sum() == len(result.jobs)


@settings(deadline=None, max_examples=50)
@given(case=cases())
def test_the_same_replay_twice_is_the_same(case: Case) -> None:
    first, second = case.run_replay(), case.run_replay()
    assert first.jobs == second.jobs
    for column, values in first.decisions.items():
        assert values.tobytes() == second.decisions[column].tobytes(), column


@settings(deadline=None, max_examples=150)
@given(case=cases())
def test_nodes_belong_to_one_job_are_idle_and_never_migrate(case: Case) -> None:
    """The nodes of all jobs are observed in the placement of every decision."""
    maps: list[tuple[list[str], Map, Map]] = []

    def watched(held: Sequence[set[str]], counts: Sequence[int], free: set[str], rank: Rank) -> dict[int, list[str]]:
        changed = rearrange(held, counts, free, rank)
        before = [set(nodes) for nodes in held]
        maps.append((sorted(free), before, [set(changed.get(index, nodes)) for index, nodes in enumerate(before)]))
        for index, nodes in changed.items():
            assert len(nodes) == len(set(nodes)) == counts[index]
        return changed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_engine, "rearrange", watched)
        result = case.run_replay()
    idle_by_time: dict[float, set[str]] = {}
    now: set[str] = set()
    for event in case.events():
        now = now - set(event.left) | {node for node, _ in event.joined}
        idle_by_time[event.time_s] = now
    times = sorted(idle_by_time)
    assert len(maps) == len(result.decisions["time_s"])
    sizes = {size for job in case.jobs for size in (0, *range(job.min_nodes, job.max_nodes + 1))}
    for time_s, (free, before, after) in zip(result.decisions["time_s"], maps, strict=True):
        held = [node for nodes in after for node in nodes]
        known = [past for past in times if past <= time_s]
        present = idle_by_time[known[-1]] if known else set()
        assert len(held) == len(set(held))
        assert set(held) <= present
        assert {node for nodes in before for node in nodes} | set(free) == present
        assert {len(nodes) for nodes in after} <= sizes
        for old, new in zip(before, after, strict=True):
            assert old <= new or new <= old


concave = st.integers(1, 5).flatmap(
    lambda scales: st.lists(st.sampled_from([1.0, 2.0, 4.0, 5.0]), min_size=scales, max_size=scales).map(
        lambda steps: tuple(float(sum(sorted(steps, reverse=True)[: count + 1])) for count in range(len(steps)))
    )
)


@settings(deadline=None, max_examples=80)
@given(trace=idle_traces(), rates=concave, places=st.integers(1, 3), data=st.data())
def test_static_nodes_are_the_limit_of_alike_jobs_with_concave_curves(
    trace: Trace, rates: tuple[float, ...], places: int, data: st.DataObject
) -> None:
    """Jensen: what alike jobs make of N nodes together is concave in N, so that an even supply is the best one."""
    jobs = [trainer(f"j{index}", rates=rates, samples=300.0) for index in range(40)]
    options = ReplayOptions(
        duration_s=60.0,
        policy=data.draw(st.sampled_from(ReplayPolicy)),
        max_parallel=places,
        accounting=data.draw(st.sampled_from(Accounting)),
    )
    events = node_events(trace, 60.0)
    if not events:
        return
    scenario = Scenario.of(trace, 60.0)
    limit = static_outcome(jobs, scenario.equivalent_nodes, options)
    free = outcome_of(Case(trace, tuple(jobs), free_options(options)).run_replay())
    assert free <= limit * (1 + 1e-9)


@settings(deadline=None, max_examples=120)
@given(
    trace=idle_traces(),
    samples=st.sampled_from([20.0, 100.0, 1e6]),
    submits=st.lists(st.integers(0, 80), min_size=1, max_size=4).map(sorted),
    data=st.data(),
)
def test_nobody_beats_free_rescaling_where_jobs_scale_linearly(
    trace: Trace, samples: float, submits: list[int], data: st.DataObject
) -> None:
    """Any job can use all nodes then, so that all that counts is that none is unused while there is a job."""
    rates = [2.0 * count for count in range(1, 7)]
    jobs = tuple(
        trainer(f"j{index}", rates=rates, samples=samples, submit_s=float(submit))
        for index, submit in enumerate(submits)
    )
    options = ReplayOptions(
        duration_s=100.0,
        policy=data.draw(st.sampled_from(ReplayPolicy)),
        forward_s=data.draw(st.sampled_from([5.0, 120.0])),
        max_parallel=data.draw(st.integers(1, 3)),
        accounting=data.draw(st.sampled_from(Accounting)),
        cost_model=data.draw(st.sampled_from(CostModel)),
        paper_quirks=data.draw(st.booleans()),
    )
    bound = outcome_of(Case(trace, jobs, free_options(options)).run_replay())
    assert outcome_of(Case(trace, jobs, options).run_replay()) <= bound + 1e-6


def test_equal_shares_are_worse_than_the_allocator_and_that_than_the_bound() -> None:
    trace = idle({f"n{index}": [(7.0 * index, 60 + 3.0 * index), (110, STAYS)] for index in range(6)}, 200.0)
    jobs = tuple(trainer(f"j{index}", rates=[1.0, 1.9, 2.6], up_s=4.0) for index in range(3))
    options = ReplayOptions(duration_s=200.0, forward_s=40.0, max_parallel=3)
    equal, milp, free = (
        outcome_of(Case(trace, jobs, chosen).run_replay())
        for chosen in (replace(options, policy=ReplayPolicy.EQUAL), options, free_options(options))
    )
    assert equal < milp < free
