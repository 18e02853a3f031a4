"""Jobs that wait for others, and windows whose size follows the queue."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.selection.rule import AdaptiveTradeOff
from malletrain.selection.select import SelectionSettings
from malletrain.simulator.batch.engine import simulate
from malletrain.simulator.batch.policies import WindowSettings, policy_named
from malletrain.simulator.batch.running import check_settings, schedule_of
from malletrain.simulator.batch.schedule import Schedule
from malletrain.simulator.batch.swf import FIELDS, parse_log
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload, workload_of
from malletrain.simulator.batch.workload_files import read_jobs, write_jobs
from tests.simulator.batch.windows import large_workload, resource_workloads

WINDOW = WindowSettings(SelectionSettings())


def job(number: int, submit_s: float, nodes: int, run_s: float, *after: int) -> BatchJob:
    return BatchJob(number, float(submit_s), nodes, float(run_s), float(run_s), after=after)


def times(schedule: Schedule) -> dict[int, tuple[float, float]]:
    return {run.job.number: (run.start_s, run.end_s) for run in schedule.runs}


@pytest.mark.parametrize("window", [False, True])
def test_a_job_starts_after_those_that_it_waits_for_and_keeps_its_place_in_the_queue(window: bool) -> None:
    jobs = (job(1, 0, 2, 10), job(2, 0, 2, 30), job(3, 1, 4, 5, 1, 99), job(4, 2, 2, 5, 3), job(5, 3, 4, 5))
    workload = BatchWorkload(jobs, 4, resources=MachineResources(4) if window else None)
    found = times(schedule_of(workload, policy_named("fcfs"), WINDOW if window else WindowSettings(None))[0])
    assert found[3] == (30.0, 35.0), "job 1 ends at 10, and four nodes are free at 30; job 99 is not of this log"
    assert found[5][0] == 35 or found[4][0] == 35
    assert found[4][0] >= 35


def test_jobs_that_are_held_back_take_no_place_of_the_window() -> None:
    """Twenty jobs that wait for a long one would fill the window; the one behind them is selected all the same."""
    chain = [job(number, 1, 1, 5, 1) for number in range(2, 22)]
    jobs = (job(1, 0, 2, 100), *chain, job(22, 2, 2, 5))
    workload = BatchWorkload(jobs, 4, resources=MachineResources(4))
    found = times(schedule_of(workload, policy_named("fcfs"), WINDOW)[0])
    assert found[22] == (2.0, 7.0)
    assert min(found[number][0] for number in range(2, 22)) == 100


@st.composite
def dependent(draw: st.DrawFn) -> BatchWorkload:
    workload = draw(resource_workloads())
    rows = []
    for place, each in enumerate(workload.jobs):
        earlier = [other.number for other in workload.jobs[:place]]
        after = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        rows.append(replace(each, after=tuple(after)))
    return replace(workload, jobs=tuple(rows))


@settings(deadline=None, max_examples=60)
@given(workload=dependent(), policy=st.sampled_from(["fcfs", "easy", "wfp"]), most=st.sampled_from([None, 40]))
def test_no_job_starts_before_those_that_it_waits_for_have_ended(
    workload: BatchWorkload, policy: str, most: int | None
) -> None:
    settings = replace(WINDOW, window=3, most_window=most)
    plain = replace(
        workload, resources=None, jobs=tuple(replace(j, burst_buffer_gb=0, ssd_gb=0) for j in workload.jobs)
    )
    for done in (schedule_of(workload, policy_named(policy), settings)[0], simulate(plain, policy_named(policy))):
        found = times(done)
        assert len(found) == len(workload.jobs), "each job runs"
        for each in workload.jobs:
            assert all(found[each.number][0] >= found[before][1] for before in each.after)


def test_tables_and_logs_have_dependencies(tmp_path: Path) -> None:
    workload = BatchWorkload((job(7, 0, 1, 5), job(7, 1, 1, 5), job(9, 2, 1, 5, 7)), 2)
    write_jobs(workload, tmp_path / "jobs.csv")
    again = read_jobs(tmp_path / "jobs.csv")
    assert [(each.number, each.after) for each in again] == [(1, ()), (2, ()), (3, (2,))], "the newest job 7"
    head = "job,submit_s,nodes,run_s,estimate_s,burst_buffer_gb,ssd_gb,after\n"
    for text in ("1,0,1,1,1,0,0,1\n", "1,0,1,1,1,0,0,x\n", "1,0,1,1,1,0,0," + " ".join(["1"] * 70) + "\n"):
        (tmp_path / "bad.csv").write_text(head + text, encoding="utf-8")
        with pytest.raises(InvalidInputError, match=r"bad\.csv:2: after"):
            read_jobs(tmp_path / "bad.csv")
    fields = {"job number": 1, "run time": 9, "requested processors": 1, "status": 1, "submit time": 0}
    lines = [" ".join(str(({**fields, **more}).get(name, -1)) for name in FIELDS) for more in _ROWS]
    log = parse_log((line.encode() for line in lines), "x.swf")
    assert [each.after for each in workload_of(log, nodes=4).jobs] == [(), (1,)]


_ROWS = ({}, {"job number": 2, "preceding job number": 1})


def test_the_window_follows_the_queue_within_its_bounds() -> None:
    settings = WindowSettings(window=10, most_window=50)
    assert [settings.size_for(waiting) for waiting in (1, 40, 41, 100, 200, 5000)] == [10, 10, 11, 25, 50, 50]
    assert WindowSettings(window=10).size_for(5000) == 10
    with pytest.raises(InvalidInputError, match="most_window"):
        WindowSettings(window=20, most_window=10)


def test_a_window_that_may_not_grow_is_the_static_one() -> None:
    workload, order = large_workload(120, 3), policy_named("wfp")
    static = schedule_of(workload, order, WINDOW)[0]
    assert times(schedule_of(workload, order, replace(WINDOW, most_window=20))[0]) == times(static)
    assert times(schedule_of(workload, order, replace(WINDOW, window=5, most_window=60))[0]) != times(static)


def test_the_factor_follows_what_waiting_jobs_ask_for() -> None:
    machine = MachineResources(100, 1000)
    rule = AdaptiveTradeOff(machine, half_life_s=100.0)
    assert rule.observe(0.0, 50, 500) == 2, "as published, before anything is known"
    assert rule.observe(100.0, 50, 2000) == 2, "as much of both"
    assert rule.observe(200.0, 50, 2000) < 2, "more of the burst buffer"
    assert rule.observe(10_000.0, 50, 2000) == Fraction(1, 2), "a quarter of the nodes' demand, and no less"
    assert rule.observe(20_000.0, 50, 2000) == Fraction(1, 2)
    rule.observe(20_000.0, 50, 0)
    assert rule.observe(90_000.0, 50, 0) == 8, "four times the published one, and no more"


def test_an_adaptive_factor_needs_a_burst_buffer_and_changes_schedules() -> None:
    workload, order = large_workload(150, 5), policy_named("wfp")
    adaptive = replace(WINDOW, adaptive=True)
    assert times(schedule_of(workload, order, adaptive)[0]) != times(schedule_of(workload, order, WINDOW)[0])
    with pytest.raises(InvalidInputError, match="burst buffer"):
        check_settings(replace(workload, resources=None, jobs=(job(1, 0, 1, 5),)), adaptive)
