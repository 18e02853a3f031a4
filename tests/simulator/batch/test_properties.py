"""Invariants of every schedule."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.simulator.batch.engine import Overrun, simulate
from malletrain.simulator.batch.idle import Window, idle_trace
from malletrain.simulator.batch.policies import POLICIES, PolicyName, policy_named
from malletrain.simulator.batch.schedule import Schedule, node_names
from malletrain.simulator.batch.workload import BatchWorkload
from tests.simulator.batch.reference import Running, earliest_start_s, in_order, simulate_slowly
from tests.simulator.batch.workloads import lublin_like, small_workloads

policies = st.sampled_from(sorted(POLICIES))
backfilling = st.sampled_from(["easy", "wfp"])
overruns = st.sampled_from(list(Overrun))


def check_nodes(schedule: Schedule, workload: BatchWorkload) -> None:
    """Every job runs once, on as many nodes as it asked for, and no node is in two jobs at a time."""
    assert sorted(run.job.number for run in schedule.runs) == [job.number for job in workload.jobs]
    stays = defaultdict(list)
    for run in schedule.runs:
        assert run.start_s >= run.job.submit_s
        assert sum(len(part) for part in run.nodes) == run.job.nodes
        for part in run.nodes:
            for node in part:
                assert 0 <= node < workload.nodes
                stays[node].append((run.start_s, run.end_s))
    for periods in stays.values():
        periods.sort()
        assert all(first[1] <= second[0] for first, second in pairwise(periods))


def check_backfills(schedule: Schedule, workload: BatchWorkload, overrun: Overrun) -> int:
    """No backfill delays the head's earliest start by the estimates, as it stood at that moment; returns how many."""
    backfills = 0
    for position, run in enumerate(schedule.runs):
        now_s = run.start_s
        running = [
            Running(before.job, before.start_s, before.end_s)
            for before in schedule.runs[:position]
            if before.end_s > now_s
        ]
        waiting = [later.job for later in schedule.runs[position:] if later.job.submit_s <= now_s]
        head = in_order(waiting, now_s, schedule.policy)[0]
        if head == run.job:
            continue
        backfills += 1
        assert head.nodes > workload.nodes - sum(other.job.nodes for other in running)
        promised_s = earliest_start_s(head, running, workload.nodes, now_s)
        with_it = [*running, Running(run.job, now_s, run.end_s)]
        assert earliest_start_s(head, with_it, workload.nodes, now_s) <= promised_s, (overrun, run)
    return backfills


@given(small_workloads(), policies, overruns)
def test_same_starts_as_the_literal_scheduler(workload: BatchWorkload, policy: str, overrun: Overrun) -> None:
    schedule = simulate(workload, policy_named(policy), overrun=overrun)
    assert {run.job.number: run.start_s for run in schedule.runs} == simulate_slowly(
        workload, policy, kill=overrun is Overrun.KILL
    )


@given(small_workloads(), policies, overruns)
def test_jobs_and_nodes_are_conserved(workload: BatchWorkload, policy: str, overrun: Overrun) -> None:
    check_nodes(simulate(workload, policy_named(policy), overrun=overrun), workload)


@given(small_workloads(), backfilling, overruns)
def test_no_backfill_delays_the_head(workload: BatchWorkload, policy: str, overrun: Overrun) -> None:
    check_backfills(simulate(workload, policy_named(policy), overrun=overrun), workload, overrun)


@given(st.one_of(small_workloads(exact=True), small_workloads()))
def test_the_head_starts_no_later_than_it_was_first_promised(workload: BatchWorkload) -> None:
    for run in simulate(workload, policy_named("easy")).runs:
        assert run.reserved_s is None or run.start_s <= run.reserved_s


@given(small_workloads(), policies, st.sampled_from(list(Window)))
def test_idle_is_what_is_not_allocated(workload: BatchWorkload, policy: str, window: Window) -> None:
    schedule = simulate(workload, policy_named(policy))
    begin_s = schedule.first_submit_s
    end_s = schedule.last_submit_s if window is Window.SUBMITS else schedule.last_end_s
    if end_s == begin_s:
        return
    trace = idle_trace(schedule, window=window)
    names = node_names(workload.nodes)
    # All times are whole seconds: count each.
    busy = {
        (names[node], second)
        for run in schedule.runs
        for part in run.nodes
        for node in part
        for second in range(int(run.start_s - begin_s), int(run.end_s - begin_s))
    }
    idle = [
        (fragment.node, second)
        for fragment in trace.fragments
        for second in range(int(fragment.idle_from_s), int(fragment.idle_until_s))
    ]
    whole = {(name, second) for name in names for second in range(int(end_s - begin_s))}
    assert len(set(idle)) == len(idle)
    assert set(idle) == whole - busy
    # Fragments of a node never touch, and come in the order that a Trace promises.
    starts = {(fragment.node, fragment.idle_from_s) for fragment in trace.fragments}
    assert not any((fragment.node, fragment.idle_until_s) in starts for fragment in trace.fragments)
    assert list(trace.fragments) == sorted(trace.fragments, key=lambda entry: (entry.idle_from_s, entry.node))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("load", [0.7, 1.1])
def test_a_site_like_workload(policy: str, exact: bool, load: float) -> None:
    workload = lublin_like(400, 64, load, seed=5, exact=exact)
    schedule = simulate(workload, policy_named(policy))
    check_nodes(schedule, workload)
    assert {run.job.number: run.start_s for run in schedule.runs} == simulate_slowly(workload, policy)
    backfills = check_backfills(schedule, workload, Overrun.KILL)
    assert (backfills > 10) == (policy != "fcfs")
    if policy == "easy":
        reserved = [(run.start_s, run.reserved_s) for run in schedule.runs if run.reserved_s is not None]
        assert len(reserved) > 10
        assert all(start_s <= reserved_s for start_s, reserved_s in reserved)


def test_backfilling_shortens_the_mean_wait_of_a_loaded_machine() -> None:
    workload = lublin_like(400, 64, 0.9, seed=11)
    waits = {policy: sum(run.wait_s for run in simulate(workload, policy_named(policy)).runs) for policy in POLICIES}
    assert waits[PolicyName.EASY] < waits[PolicyName.FCFS]
