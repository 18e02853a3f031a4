"""The scheduler with a window: recorded schedules, and what holds for every schedule."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.selection.methods import SelectionMethod, methods_for
from malletrain.selection.problem import MachineResources
from malletrain.selection.rule import WasteReading
from malletrain.selection.select import SelectionSettings, SelectionSolver
from malletrain.simulator.batch.engine import Overrun, simulate
from malletrain.simulator.batch.machine import MachineSpec
from malletrain.simulator.batch.policies import ReservedKinds, Starved, WindowSettings, policy_named
from malletrain.simulator.batch.running import machine_with, method_run, schedule_of
from malletrain.simulator.batch.schedule import Schedule
from malletrain.simulator.batch.window_engine import simulate_window
from malletrain.simulator.batch.workload import BatchWorkload
from malletrain.simulator.batch.workload_files import read_any_workload
from tests.simulator.batch.windows import large_workload, resource_workloads
from tests.simulator.batch.workloads import lublin_like
from tests.support.shared import shared_path

BASELINE = WindowSettings(selection=None)
RECORDED: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("wfp", {}),
    "depth-20": ("wfp", {"backfill_depth": 20}),
    "starved-reserve": ("wfp", {"starved": Starved.RESERVE}),
    "nodes-only": ("wfp", {"reserve": ReservedKinds.NODES}),
    "fcfs": ("easy", {}),
}


def using(method: SelectionMethod, **more: Any) -> WindowSettings:
    return WindowSettings(SelectionSettings(method, SelectionSolver.EXACT, waste=WasteReading.MACHINE), **more)


def starts(schedule: Schedule) -> dict[int, float]:
    return {run.job.number: run.start_s for run in schedule.runs}


@pytest.mark.parametrize("setting", RECORDED)
@pytest.mark.parametrize("name", ["theta-sample", "theta-sample-ssd"])
def test_recorded_schedules(name: str, setting: str) -> None:
    table = shared_path(f"bbsched/workloads/{name}.csv")
    workload = read_any_workload(table, spec=MachineSpec())
    recorded = json.loads(table.with_name(f"{name}.expected.json").read_text())[setting]["exact"]
    policy, more = RECORDED[setting]
    for method, expected in recorded.items():
        chosen = (
            replace(BASELINE, **more)
            if method == "baseline"
            else using(SelectionMethod(method.replace("_", "-")), **more)
        )
        done = method_run(workload, policy_named(policy), chosen)
        lines = "".join(f"{number},{start_s:.0f}\n" for number, start_s in sorted(starts(done.schedule).items()))
        assert hashlib.sha256(lines.encode()).hexdigest() == expected["schedule_sha256"], method
        found = done.metrics
        assert found.node_usage == pytest.approx(expected["node_usage"], abs=1e-12)
        assert found.burst_buffer_usage == pytest.approx(expected["bb_usage"], abs=1e-12)
        assert found.mean_wait_s == pytest.approx(expected["mean_wait_s"])
        assert found.mean_slowdown == pytest.approx(expected["mean_slowdown"])
        assert found.mean_bounded_slowdown == pytest.approx(expected["mean_bounded_slowdown"])
        assert found.jobs == expected["jobs_measured"]
        assert found.makespan_s == expected["makespan_s"]
        assert found.ssd_usage == pytest.approx(expected.get("ssd_usage"))
        assert found.ssd_wasted == pytest.approx(expected.get("ssd_wasted"))
        classes = {"nodes": found.waits_by_nodes, "bb": found.waits_by_burst_buffer, "run": found.waits_by_run}
        waits = {f"wait_{kind}_{name}": wait for kind, values in classes.items() for name, wait in values.items()}
        assert waits == pytest.approx({key: value for key, value in expected.items() if key.startswith("wait_")})


def check_schedule(workload: BatchWorkload, schedule: Schedule) -> None:
    """Nothing is oversubscribed, and each job runs once, after its submission, on nodes that have its SSD."""
    machine = machine_with(workload)
    assert sorted(starts(schedule)) == sorted(job.number for job in workload.jobs)
    busy: dict[int, float] = {}
    for run in schedule.runs:
        assert run.start_s >= run.job.submit_s
        held = [index for part in run.nodes for index in part]
        assert len(held) == run.job.nodes
        for index in held:
            assert busy.get(index, 0.0) <= run.start_s
            busy[index] = run.end_s
            assert run.job.ssd_gb <= (machine.large_ssd_gb if index >= machine.small_nodes else machine.small_ssd_gb)
    for run in schedule.runs:
        together = [one for one in schedule.runs if one.start_s <= run.start_s < one.end_s]
        assert sum(one.job.burst_buffer_gb for one in together) <= machine.burst_buffer_gb


METHODS = [None, *SelectionMethod]
SETTINGS = st.builds(
    WindowSettings,
    st.just(None),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from(Starved),
    st.sampled_from(ReservedKinds),
    st.none() | st.integers(1, 5),
)


@settings(max_examples=250, deadline=None)
@given(resource_workloads(), st.sampled_from(METHODS), SETTINGS, st.sampled_from(["fcfs", "easy", "wfp"]))
def test_nothing_is_oversubscribed(
    workload: BatchWorkload, method: SelectionMethod | None, chosen: WindowSettings, policy: str
) -> None:
    if method is not None and method not in methods_for(machine_with(workload)):
        return
    chosen = replace(chosen, selection=method and SelectionSettings(method))
    check_schedule(workload, schedule_of(workload, policy_named(policy), chosen)[0])


@settings(max_examples=150, deadline=None)
@given(resource_workloads(), st.sampled_from(list(SelectionMethod)), st.sampled_from(["easy", "wfp"]))
def test_a_window_of_1_is_the_baseline(workload: BatchWorkload, method: SelectionMethod, policy: str) -> None:
    if method not in methods_for(machine_with(workload)):
        return
    order = policy_named(policy)
    baseline = simulate_window(workload, order, BASELINE)[0]
    assert starts(simulate_window(workload, order, using(method, window=1))[0]) == starts(baseline)


@settings(max_examples=300, deadline=None)
@given(resource_workloads(), st.sampled_from(list(SelectionMethod)), st.integers(1, 6), st.integers(1, 3))
def test_with_reservations_for_the_starved_nobody_is_later_than_promised(
    workload: BatchWorkload, method: SelectionMethod, window: int, bound: int
) -> None:
    """In the order of submission, whatever is selected beside the reservation."""
    if method not in methods_for(machine_with(workload)):
        return
    chosen = using(method, window=window, starvation_bound=bound, starved=Starved.RESERVE)
    counts = simulate_window(workload, policy_named("easy"), chosen)[1]
    assert counts.late_starts == 0


@settings(max_examples=100, deadline=None)
@given(resource_workloads(), st.sampled_from(list(SelectionMethod)))
def test_jobs_that_may_overrun_their_estimates_oversubscribe_nothing(
    workload: BatchWorkload, method: SelectionMethod
) -> None:
    if method not in methods_for(machine_with(workload)):
        return
    done = simulate_window(workload, policy_named("wfp"), using(method, window=4), overrun=Overrun.RUN)[0]
    check_schedule(workload, done)
    assert all(run.end_s == run.start_s + run.job.run_s for run in done.runs)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "wfp"])
@pytest.mark.parametrize("seed", [1, 2])
def test_without_further_resources_the_baseline_is_the_other_engine(policy: str, seed: int) -> None:
    workload = lublin_like(1500, 128, 0.95, seed)
    order = policy_named(policy)
    assert simulate_window(workload, order, BASELINE)[0] == simulate(workload, order)


@pytest.mark.parametrize("ssd", [False, True])
def test_a_large_workload_by_each_method(ssd: bool) -> None:
    workload = large_workload(600, 5, ssd=ssd)
    for method in methods_for(machine_with(workload)):
        done, counts = schedule_of(workload, policy_named("wfp"), using(method))
        check_schedule(workload, done)
        assert counts.selected_starts > 0


def test_the_same_seed_gives_the_same_schedule_of_the_genetic_algorithm() -> None:
    workload = large_workload(300, 6)
    chosen = WindowSettings(SelectionSettings(solver=SelectionSolver.GENETIC))
    one, two = (schedule_of(workload, policy_named("wfp"), chosen) for _ in range(2))
    assert one[0] == two[0]
    assert one[1].genetic_answers > 0


def test_backfilling_does_not_delay_a_job_that_waits_for_burst_buffer() -> None:
    # 10 nodes, 10 GB. Job 1 has 8 GB until 100. Job 2 wants 9 GB: promised 100. Job 3 would take 2 GB until 201: waits,
    # unless reservations look at nodes only. Job 4 takes 2 GB until 50: starts.
    rows = ((0.0, 1, 100.0, 8), (1.0, 1, 100.0, 9), (1.0, 1, 200.0, 2), (2.0, 1, 48.0, 2))
    plain = lublin_like(4, 10, 0.5, 1)
    jobs = tuple(
        replace(job, submit_s=submit_s, nodes=nodes, run_s=run_s, estimate_s=run_s, burst_buffer_gb=gb)
        for job, (submit_s, nodes, run_s, gb) in zip(plain.jobs, rows, strict=True)
    )
    workload = BatchWorkload(jobs, 10, resources=MachineResources(10, 10))
    easy = policy_named("easy")
    assert starts(schedule_of(workload, easy)[0]) == {1: 0.0, 2: 100.0, 3: 200.0, 4: 2.0}
    nodes_only = replace(BASELINE, reserve=ReservedKinds.NODES)
    assert starts(schedule_of(workload, easy, nodes_only)[0]) == {1: 0.0, 2: 201.0, 3: 1.0, 4: 100.0}
