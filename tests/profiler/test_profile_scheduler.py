"""Profile runs in a simulated cluster: who is profiled, who gives nodes, and what follows from preemptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from malletrain.profiler.machine.family_store import FamilyStore
from malletrain.profiler.machine.profile_scheduler import ClusterView, JobView, ScaleRequest, advance
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.store import METADATA, ProfilerStore
from tests.profiler.fake_cluster import PARAMETERS, FakeCluster, FakeJob, scales


def finish(cluster: FakeCluster, job_id: str, ticks: int = 400) -> ProfileRun:
    for _ in range(ticks):
        cluster.tick()
        run = cluster.state.runs.get(job_id)
        if run is not None and run.state is ProfileRunState.DONE:
            return run
    raise AssertionError(f"not done after {ticks} s: {cluster.state}")


def test_one_growth_to_the_top_and_then_down() -> None:
    cluster = FakeCluster(16, {"a": FakeJob(scales(1, 16), nodes=1)}, wanted=["a"])
    run = finish(cluster, "a")
    assert run.visited == (16, 8, 4, 2, 1)
    assert (run.growths, run.shrinks) == (1, 4)
    assert run.donors == ()
    assert 0 < run.stalled_node_seconds < run.node_seconds
    assert cluster.requests == {}


@pytest.mark.parametrize(("known", "ticks"), [({}, 5), ({8: 3}, 4), ({8: 5}, 1)])
def test_a_precise_and_recent_measurement_of_the_top_counts(known: dict[int, int], ticks: int) -> None:
    cluster = FakeCluster(8, {"a": FakeJob(scales(1, 8), nodes=8, steps=dict(known))}, wanted=["a"])
    for _ in range(ticks):
        assert 8 not in (cluster.state.runs["a"].visited if "a" in cluster.state.runs else ())
        cluster.tick()
    assert cluster.state.runs["a"].visited == (8,)
    assert cluster.state.runs["a"].nodes == 4


def test_old_steps_of_a_scale_do_not_count() -> None:
    cluster = FakeCluster(8, {"a": FakeJob(scales(1, 8), nodes=1, steps={8: 100})}, wanted=["a"])
    for _ in range(20):
        if 8 not in (cluster.state.runs["a"].visited if "a" in cluster.state.runs else ()):
            cluster.tick()
    assert cluster.jobs["a"].steps[8] == 100 + 3


def test_a_start_from_nothing_is_no_growth() -> None:
    assert finish(FakeCluster(4, {"a": FakeJob(scales(1, 4))}, wanted=["a"]), "a").growths == 0


def test_only_permitted_scales_are_measured() -> None:
    cluster = FakeCluster(16, {"a": FakeJob((2, 3, 6, 12), nodes=2)}, wanted=["a"])
    assert finish(cluster, "a").visited == (12, 6, 3, 2)


def test_donors_give_one_after_the_other_and_the_job_grows_once() -> None:
    donors = {f"g{index}": FakeJob(scales(2, 8), nodes=4) for index in range(4)}
    cluster = FakeCluster(17, {"a": FakeJob(scales(1, 8), nodes=1), **donors}, wanted=["a"])
    shrinking: list[set[str]] = []
    while not (run := cluster.state.runs.get("a")) or run.state is not ProfileRunState.DONE:
        before = {name: entry.nodes for name, entry in cluster.jobs.items()}
        cluster.tick()
        shrinking.append({name for name, entry in cluster.jobs.items() if name != "a" and entry.nodes < before[name]})
    assert [names for names in shrinking if names] == [{"g0"}, {"g1"}, {"g2"}, {"g3"}][: len(run.donors)]
    assert run.donors == ("g0", "g1", "g2", "g3")
    assert run.growths == 1
    assert run.visited[0] == 8
    assert all(cluster.jobs[name].nodes >= 2 for name in donors)


def test_while_nodes_are_gathered_all_other_jobs_keep_their_scale() -> None:
    cluster = FakeCluster(
        12, {"a": FakeJob(scales(1, 8)), "b": FakeJob(scales(1, 8), 6), "c": FakeJob(scales(1, 8), 6)}, ["a"]
    )
    step = cluster.tick()
    assert step.requests == {"a": ScaleRequest(), "b": ScaleRequest(1), "c": ScaleRequest()}


def test_a_run_stays_in_the_pool_of_its_job() -> None:
    jobs = (
        JobView("a", scales(1, 8), 0, steady=True, pool=None),
        JobView("b", scales(1, 8), 2, steady=True, pool="gpu"),
        JobView("c", scales(1, 8), 1, steady=True, pool="gpu"),
        JobView("d", scales(1, 8), 3, steady=True, pool="cpu"),
    )
    cluster = FakeCluster(16, {name: FakeJob(scales(1, 8)) for name in "abcd"}, wanted=["a", "b"])
    view = ClusterView(cluster.now, 16, jobs, {"gpu": 4, "cpu": 12})
    step = advance(cluster.state, view, cluster, replace(PARAMETERS, least_top_share=0.5))
    assert step.runs["a"].reason == "waits for nodes: 2 needed, 0 within reach"
    assert step.active is not None
    assert (step.active.job_id, step.active.top) == ("b", 3)
    expected = {"a": ScaleRequest(), "b": ScaleRequest(3, grow=True), "c": ScaleRequest()}
    assert step.requests == expected, "the other pool is left alone; who might come to this one waits"


def test_with_too_few_nodes_the_run_keeps_its_place_in_the_queue() -> None:
    cluster = FakeCluster(
        4, {"a": FakeJob(scales(4, 8)), "b": FakeJob(scales(2, 4), nodes=2), "c": FakeJob(scales(1, 2))}, ["a", "c"]
    )
    cluster.jobs["b"].nodes = 3
    cluster.tick()
    assert cluster.state.runs["a"].state is ProfileRunState.QUEUED
    assert cluster.state.runs["a"].reason == "waits for nodes: 5 needed, 0 within reach"
    assert cluster.state.active is not None
    assert cluster.state.active.job_id == "c", "those behind it that have enough need not wait"
    cluster.idle = 12
    finish(cluster, "a")


def test_after_a_preemption_the_run_goes_on_with_the_remaining_nodes() -> None:
    cluster = FakeCluster(8, {"a": FakeJob(scales(1, 8), nodes=1)}, wanted=["a"])
    while cluster.state.active is None or cluster.state.active.state is not ProfileRunState.MEASURING:
        cluster.tick()
    for _ in range(3):
        cluster.lose("a")
    run = finish(cluster, "a")
    assert run.visited == (5, 4, 2, 1)
    assert run.growths == 1


def test_at_a_scale_that_is_not_permitted_the_run_goes_on_at_the_next_smaller_one() -> None:
    cluster = FakeCluster(8, {"a": FakeJob((2, 4, 8), nodes=8)}, wanted=["a"])
    while cluster.state.active is None or cluster.state.active.nodes != 4 or cluster.jobs["a"].nodes != 4:
        cluster.tick()
    cluster.idle = cluster.jobs["a"].nodes = 3
    cluster.tick()
    assert cluster.requests == {"a": ScaleRequest(2)}
    assert finish(cluster, "a").visited == (8, 2)


def test_below_the_smallest_scale_the_run_is_queued_again() -> None:
    cluster = FakeCluster(8, {"a": FakeJob((2, 4, 8), nodes=8)}, wanted=["a"])
    while cluster.state.active is None or cluster.state.active.nodes != 4:
        cluster.tick()
    cluster.idle = cluster.jobs["a"].nodes = 1
    cluster.tick()
    assert cluster.state.runs["a"].state is ProfileRunState.QUEUED
    assert cluster.requests == {}


def test_after_losing_all_nodes_the_run_goes_on_below_the_measured_scales() -> None:
    cluster = FakeCluster(8, {"a": FakeJob(scales(1, 8), nodes=1)}, wanted=["a"])
    while 8 not in (cluster.state.runs["a"].visited if "a" in cluster.state.runs else ()):
        cluster.tick()
    while cluster.jobs["a"].nodes:
        cluster.lose("a")
    cluster.idle = 0
    cluster.tick()
    assert cluster.state.runs["a"].state is ProfileRunState.QUEUED
    assert cluster.requests == {}
    cluster.idle = 6
    run = finish(cluster, "a")
    assert run.visited[0] == 8
    assert run.visited[-1] == 1


def test_when_the_job_is_gone_all_requests_end_at_once() -> None:
    cluster = FakeCluster(9, {"a": FakeJob(scales(1, 8), 1), "b": FakeJob(scales(1, 8), 8)}, wanted=["a"])
    cluster.tick()
    assert cluster.requests
    del cluster.jobs["a"]
    assert cluster.tick().requests == {}
    assert cluster.state.runs == {}


def test_a_requested_run_needs_no_policy_to_want_it() -> None:
    cluster = FakeCluster(4, {"a": FakeJob(scales(1, 4), nodes=4)})
    cluster.tick()
    assert cluster.state.runs == {}
    cluster.state = cluster.state.with_requested_run("a")
    assert finish(cluster, "a").visited == (4, 2, 1)
    cluster.state = cluster.state.with_requested_run("a")
    assert cluster.state.runs["a"].state is ProfileRunState.QUEUED


def test_a_second_request_does_not_restart_an_active_run() -> None:
    cluster = FakeCluster(4, {"a": FakeJob(scales(1, 4), nodes=4)})
    cluster.state = cluster.state.with_requested_run("a")
    cluster.tick()
    assert cluster.state.with_requested_run("a") == cluster.state


def test_a_queued_run_that_is_no_longer_wanted_is_dropped() -> None:
    cluster = FakeCluster(2, {"a": FakeJob(scales(3, 4)), "b": FakeJob(scales(1, 2), 2)}, wanted=["a"])
    cluster.tick()
    assert cluster.state.runs["a"].state is ProfileRunState.QUEUED
    cluster.wanted.clear()
    cluster.tick()
    assert cluster.state.runs == {}


def test_over_a_hundred_profiles_interruptions_differ_by_one_at_most() -> None:
    names = [f"j{index}" for index in range(10)]
    cluster = FakeCluster(40, {name: FakeJob(scales(1, 12), nodes=4) for name in names})
    least: dict[str, int] = dict.fromkeys(names, 99)
    for round_number in range(100):
        newcomer = f"n{round_number:03d}"
        cluster.jobs[newcomer] = FakeJob(scales(1, 10))
        cluster.wanted.add(newcomer)
        while (run := cluster.state.runs.get(newcomer)) is None or run.state is not ProfileRunState.DONE:
            cluster.tick()
            for name in names:
                least[name] = min(least[name], cluster.jobs[name].nodes)
        del cluster.jobs[newcomer]
        cluster.share_equally()
    counts = [cluster.state.interruptions.counts.get(name, 0) for name in names]
    assert sum(counts) >= 100
    assert max(counts) - min(counts) <= 1
    assert min(least.values()) >= 1


@st.composite
def clusters(draw: st.DrawFn) -> FakeCluster:
    jobs = {}
    idle = 0
    for index in range(draw(st.integers(1, 5))):
        low = draw(st.integers(1, 3))
        permitted = draw(st.sets(st.integers(low, 12), min_size=1, max_size=6).map(sorted))
        nodes = draw(st.sampled_from([0, *permitted]))
        idle += nodes
        jobs[f"j{index}"] = FakeJob(tuple(permitted), nodes)
    wanted = draw(st.sets(st.sampled_from(sorted(jobs)), min_size=1))
    return FakeCluster(idle + draw(st.integers(0, 6)), jobs, sorted(wanted))


@given(clusters(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4)), max_size=4))
def test_no_other_job_is_stopped_and_all_runs_end(cluster: FakeCluster, losses: list[tuple[int, int]]) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    METADATA.create_all(engine)
    calm = 0
    for tick in range(400):
        calm = calm + 1 if cluster.state.active is None else 0
        if calm > 20 and tick > 61:
            break
        for when, which in losses:
            if when == tick:
                cluster.lose(sorted(cluster.jobs)[which % len(cluster.jobs)])
        before = {name: entry.nodes for name, entry in cluster.jobs.items()}
        steady = {job.job_id for job in cluster.view().jobs if job.steady}
        step = cluster.tick()
        active = cluster.state.active
        shrunk = [name for name in before if cluster.jobs[name].nodes < before[name]]
        others = [name for name in shrunk if active is None or name != active.job_id]
        assert len(others) <= 1
        assert all(cluster.jobs[name].nodes >= cluster.jobs[name].scales[0] for name in others)
        assert set(others) <= steady | {name for name in others if cluster.now >= cluster.jobs[name].busy_until - 3}
        if active is not None and active.state is ProfileRunState.MEASURING:
            assert set(step.requests) == {active.job_id}
            assert not step.requests[active.job_id].grow
        if tick % 60 == 7:
            store = ProfilerStore(engine)
            store.write(store.changes(cluster.state, FamilyStore(8), {}))
            stored = replace(cluster.state, requests={}, requests_until=0.0)
            assert ProfilerStore(engine).load_state() == stored
    assert cluster.state.active is None
    assert cluster.requests == {}
    assert sum(entry.nodes for entry in cluster.jobs.values()) <= cluster.idle
    for run in cluster.state.runs.values():
        assert run.state in (ProfileRunState.DONE, ProfileRunState.QUEUED)
        assert run.growths <= 1 + len(losses)
        assert list(run.visited) == sorted(run.visited, reverse=True)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_run_that_cannot_climb_in_time_waits_again(share: float) -> None:
    cluster = FakeCluster(9, {"a": FakeJob(scales(1, 8), 1), "b": FakeJob(scales(1, 8), 8)}, wanted=["a"])
    cluster.tick()
    cluster.jobs["b"].nodes, cluster.jobs["b"].busy_until = 8, 1e9  # it never lets go
    cluster.jobs["a"].nodes = 1
    for _ in range(int(150 * share) + 110):
        cluster.tick(stall=1e9)
        cluster.jobs["b"].nodes, cluster.jobs["a"].nodes = 8, 1
        if cluster.state.active is None:
            break
    assert cluster.state.runs["a"].state is ProfileRunState.QUEUED
    assert "in time" in cluster.state.runs["a"].reason or "waits for nodes" in cluster.state.runs["a"].reason
