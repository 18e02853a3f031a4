"""Outcomes on static nodes, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.allocator.problem.allocation_problem import ObjectiveMetric
from malletrain.simulator.replay.evaluation import free_options, static_outcome, static_rate
from malletrain.simulator.replay.options import Accounting, ReplayOptions, ReplayPolicy
from tests.simulator.replay.builders import trainer

RATES = (10.0, 20.0, 30.0, 32.0)
OPTIONS = ReplayOptions(duration_s=100.0, max_parallel=2)


@pytest.mark.parametrize(
    ("nodes", "per_second"),
    [(0, 0), (1, 10), (2, 20), (6, 60), (7, 62), (8, 64), (9, 64), (0.5, 5), (1.25, 12.5), (6.5, 61), (7.75, 63.5)],
)
def test_alike_jobs_share_static_nodes_and_fractions_lie_between_whole_numbers(nodes: float, per_second: float) -> None:
    jobs = [trainer(f"j{index}", rates=RATES) for index in range(5)]
    assert static_outcome(jobs, nodes, OPTIONS) == pytest.approx(100 * per_second)
    assert static_rate(jobs[:2], nodes, ObjectiveMetric.THROUGHPUT) == pytest.approx(per_second)


def test_neither_costs_nor_policy_nor_accounting_matter() -> None:
    jobs = [trainer("a", rates=RATES, up_s=50.0, samples=300.0), trainer("b", rates=RATES, up_s=50.0, samples=700.0)]
    outcome = static_outcome(jobs, 3.5, OPTIONS)
    paper = replace(OPTIONS, policy=ReplayPolicy.FIXED, accounting=Accounting.PAPER, paper_quirks=True)
    assert static_outcome(jobs, 3.5, paper) == outcome == pytest.approx(3500.0)


def test_the_job_set_starts_over_when_it_is_done() -> None:
    jobs = [trainer("a", rates=RATES, samples=30.0)]
    assert static_outcome(jobs, 1, replace(OPTIONS, max_parallel=1)) == pytest.approx(1000.0)


def test_it_starts_over_once_the_last_job_is_submitted() -> None:
    jobs = [trainer("a", rates=RATES, samples=300.0), trainer("b", rates=RATES, samples=300.0, submit_s=60.0)]
    # 30 s of work, 30 s of nothing, and then there is always a job.
    assert static_outcome(jobs, 1, OPTIONS) == pytest.approx(300 + 400)


@pytest.mark.parametrize(("first_s", "expected"), [(0.0, 300.0), (200.0, 0.0)])
def test_jobs_of_a_later_time_are_not_waited_for(first_s: float, expected: float) -> None:
    jobs = [trainer("a", rates=RATES, samples=300.0, submit_s=first_s), trainer("b", rates=RATES, submit_s=1000.0)]
    assert static_outcome(jobs, 1, OPTIONS) == expected


def test_efficiency_counts_a_sample_by_what_one_node_makes() -> None:
    jobs = [trainer("a", rates=RATES)]
    options = replace(OPTIONS, max_parallel=1, metric=ObjectiveMetric.SCALING_EFFICIENCY)
    assert static_outcome(jobs, 4, options) == pytest.approx(100 * 3.2)
    assert static_rate(jobs, 4, ObjectiveMetric.SCALING_EFFICIENCY) == pytest.approx(3.2)


def test_the_bound_is_the_production_allocator_with_free_rescaling_whatever_is_compared() -> None:
    paper = replace(OPTIONS, policy=ReplayPolicy.EQUAL, accounting=Accounting.PAPER, paper_quirks=True)
    shared = replace(OPTIONS, max_parallel_per_owner=2, max_nodes_per_owner=3)
    bound = replace(OPTIONS, free=True, fair_share_half_life_s=0.0)
    assert free_options(paper) == free_options(shared) == bound
