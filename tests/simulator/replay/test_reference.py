"""The figures that an independent implementation gives for the first week of the Summit log, and the paper's trends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.scavenger.idle_trace import window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.evaluation import Scenario, free_options, outcome_of, static_outcome
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob, read_job_set
from malletrain.simulator.replay.options import Accounting, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import Baselines, Metrics, mean_runtime_hours, measure
from tests.support.shared import shared_path

WEEK_S = 168 * 3600.0
NODES = 1024
OPTIONS = ReplayOptions(duration_s=WEEK_S, forward_s=120.0, max_parallel=10, cost_model=CostModel.PAPER)


@pytest.fixture(scope="module")
def week() -> Scenario:
    trace = read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))
    return Scenario.of(window(trace, 0.0, WEEK_S, NODES), WEEK_S)


def job_set(name: str) -> tuple[ReplayJob, ...]:
    return read_job_set(shared_path(f"jobs/{name}"), shared_path("jobs/scaling.csv"))


@pytest.fixture(scope="module")
def trials() -> tuple[ReplayJob, ...]:
    return job_set("hpo-shufflenet-1000.csv")


@pytest.fixture(scope="module")
def baselines(week: Scenario, trials: tuple[ReplayJob, ...]) -> Baselines:
    free = run_replay(week.events, week.nodes, trials, free_options(OPTIONS))
    static = static_outcome(trials, week.equivalent_nodes, OPTIONS)
    return Baselines(week.node_hours, week.equivalent_nodes, static, outcome_of(free))


def figures(week: Scenario, trials: tuple[ReplayJob, ...], baselines: Baselines, options: ReplayOptions) -> Metrics:
    return measure(run_replay(week.events, week.nodes, trials, options), baselines, options.forward_s)


def test_the_resource_integral(week: Scenario) -> None:
    assert week.node_hours == pytest.approx(14_296, rel=1e-3)
    assert week.equivalent_nodes == pytest.approx(85.09, rel=1e-3)


@pytest.mark.parametrize(
    ("accounting", "policy", "expected"),
    [
        (Accounting.PAPER, ReplayPolicy.EQUAL, 0.76),
        (Accounting.PAPER, ReplayPolicy.MILP, 0.83),
        (Accounting.EVENT, ReplayPolicy.EQUAL, 0.80),
        (Accounting.EVENT, ReplayPolicy.MILP, 0.89),
    ],
)
def test_utilization_efficiency(
    week: Scenario,
    trials: tuple[ReplayJob, ...],
    baselines: Baselines,
    accounting: Accounting,
    policy: ReplayPolicy,
    expected: float,
) -> None:
    options = replace(OPTIONS, accounting=accounting, policy=policy)
    metrics = figures(week, trials, baselines, options)
    assert metrics.utilization_efficiency == pytest.approx(expected, rel=0.01)
    assert metrics.zero_cost_bound == pytest.approx(0.924, rel=0.01)


def test_a_rescale_pays_off_less_the_further_the_allocator_looks_ahead(
    week: Scenario, trials: tuple[ReplayJob, ...], baselines: Baselines
) -> None:
    """Fig. 7 and 8: with T_fwd, preemption within it and the cost of rescaling rise, and the return falls."""
    paper = replace(OPTIONS, accounting=Accounting.PAPER)
    short, long = (figures(week, trials, baselines, replace(paper, forward_s=seconds)) for seconds in (10.0, 600.0))
    assert short.preemption_within_forward < long.preemption_within_forward
    assert short.rescale_cost_samples < long.rescale_cost_samples
    assert short.return_on_investment is not None
    assert long.return_on_investment is not None
    assert short.return_on_investment > long.return_on_investment


def runtimes(week: Scenario, metric: ObjectiveMetric, max_parallel: int) -> Mapping[str, float]:
    options = replace(OPTIONS, accounting=Accounting.PAPER, max_parallel=max_parallel, metric=metric)
    return mean_runtime_hours(run_replay(week.events, week.nodes, job_set("imagenet-mix-1001.csv"), options))


def test_for_throughput_the_slowest_model_pays_for_more_parallel_jobs(week: Scenario) -> None:
    """Table 3: 4.1 h to 42.3 h for DenseNet, 0.5 h to 0.6 h for AlexNet."""
    few, many = (runtimes(week, ObjectiveMetric.THROUGHPUT, places) for places in (5, 35))
    assert 7 < many["DenseNet"] / few["DenseNet"] < 13
    assert many["AlexNet"] == pytest.approx(few["AlexNet"], rel=0.5)
    assert max(many, key=many.__getitem__) == "DenseNet"


def test_for_scaling_efficiency_the_model_that_scales_worst_pays(week: Scenario) -> None:
    """Table 4: 0.94 h to 8.8 h for AlexNet, 2.6 times as long for VGG-16; the models come closer to each other."""
    few, many = (runtimes(week, ObjectiveMetric.SCALING_EFFICIENCY, places) for places in (5, 35))
    assert many["AlexNet"] / few["AlexNet"] > 4
    assert many["VGG-16"] / few["VGG-16"] < 3
    assert max(many.values()) / min(many.values()) < 10


def test_the_week_twice_is_the_same_to_the_last_bit(week: Scenario, trials: tuple[ReplayJob, ...]) -> None:
    first, second = (run_replay(week.events, week.nodes, trials, OPTIONS) for _ in range(2))
    assert first.jobs == second.jobs
    assert all(values.tobytes() == second.decisions[name].tobytes() for name, values in first.decisions.items())
