"""What BFTrainer's Fig. 13 and 16 say holds on a day of the published log."""

from __future__ import annotations

import pytest

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.reproduce.bftrainer.experiments import JobSets, all_experiments, cost_name, mix_name, perform
from malletrain.reproduce.bftrainer.mix_exhibits import common_efficiency
from malletrain.scavenger.idle_trace import window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.evaluation import Evaluation, Scenario
from malletrain.simulator.replay.options import Accounting, ReplayOptions
from malletrain.simulator.replay.presets import preset_workload
from tests.support.shared import shared_path

DAY_S = 24 * 3600.0
SETS = JobSets(preset_workload("hpo"), preset_workload("imagenet"))
WANTED = (*(mix_name(metric) for metric in ObjectiveMetric), cost_name(1), cost_name(10), cost_name(10, True))


@pytest.fixture(scope="module")
def results() -> dict[str, Evaluation]:
    trace = read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))
    scenario = Scenario.of(window(trace, 0.0, DAY_S, 1024), DAY_S)
    options = ReplayOptions(duration_s=DAY_S, accounting=Accounting.PAPER, cost_model=CostModel.PAPER)
    found = {experiment.name: experiment for experiment in all_experiments(SETS, options)}
    assert len(found) == 50
    return {name: perform(scenario, found[name]) for name in WANTED}


def test_scaling_efficiency_does_more_work_with_the_same_nodes(results: dict[str, Evaluation]) -> None:
    by_metric = {metric: common_efficiency(results, SETS, metric, 120) for metric in ObjectiveMetric}
    assert by_metric[ObjectiveMetric.SCALING_EFFICIENCY] > by_metric[ObjectiveMetric.THROUGHPUT] > 0.6
    own = results[mix_name(ObjectiveMetric.SCALING_EFFICIENCY)].metrics.utilization_efficiency
    assert by_metric[ObjectiveMetric.SCALING_EFFICIENCY] == pytest.approx(own)


def test_dearer_growths_cost_little_and_dearer_shrinks_what_preemption_costs(results: dict[str, Evaluation]) -> None:
    plain, both, growths = (
        results[name].metrics for name in (cost_name(1), cost_name(10), cost_name(10, growths_only=True))
    )
    assert 0.0 < plain.utilization_efficiency - growths.utilization_efficiency < 0.06
    lost = plain.utilization_efficiency - both.utilization_efficiency
    preempted = (both.preemption_cost_samples - plain.preemption_cost_samples) / both.static_outcome
    assert lost > 0.1
    assert preempted > 0.7 * lost
