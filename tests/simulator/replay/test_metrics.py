"""The figures of a replay, on columns written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from malletrain.simulator.replay.records import (
    Baselines,
    Columns,
    Decision,
    Decisions,
    JobRecord,
    ReplayResult,
    cumulative_samples,
    mean_runtime_hours,
    measure,
    preemption_within,
    return_on_investment,
    returns,
    sums_between,
)


def columns(*rows: dict[str, Any]) -> Columns:
    """Columns of decisions; those that are not given are 0."""
    found = Decisions()
    for row in rows:
        found.add(Decision(**{**dict.fromkeys(Decision._fields, 0), **row}))
    return found.columns()


def record(name: str, model: str = "net", ended_s: float | None = None, **figures: Any) -> JobRecord:
    whole: dict[str, Any] = {"admitted_s": 0.0, "samples": 0.0, "unit": 1.0, "node_seconds": 0.0, "preemptions": 0}
    whole |= {"rescales": 0, "preemption_samples": 0.0, "rescale_samples": 0.0, "started_s": 0.0}
    return JobRecord(job=name, model=model, submit_s=0.0, ended_s=ended_s, **{**whole, **figures})


def test_preemption_within_counts_node_events_that_a_loss_follows_soon() -> None:
    found = columns(
        {"time_s": 0.0, "node_event": True},
        {"time_s": 10.0, "node_event": True, "preempted": 1},
        {"time_s": 15.0, "node_event": False, "ended": 1},
        {"time_s": 40.0, "node_event": True, "preempted": 2},
        {"time_s": 60.0, "node_event": True},
    )
    assert preemption_within(found, 9.0) == 0.0
    assert preemption_within(found, 10.0) == 1 / 4  # 0 -> 10
    assert preemption_within(found, 30.0) == 2 / 4  # 10 -> 40 too; its own loss does not count
    assert preemption_within(found, 1e9) == 2 / 4  # nothing follows the last two
    assert preemption_within(columns(), 120.0) == 0.0


def test_return_on_investment_is_over_the_decisions_that_invested() -> None:
    found = columns(
        {"time_s": 0.0, "samples_before": 0.0, "samples": 0.0},
        {"time_s": 10.0, "invested_samples": 5.0, "samples_before": 100.0, "samples": 95.0},
        {"time_s": 20.0, "samples_before": 195.0, "samples": 195.0},
        {"time_s": 30.0, "invested_samples": 15.0, "samples_before": 245.0, "samples": 230.0},
        {"time_s": 40.0, "invested_samples": 7.0, "samples_before": 270.0, "samples": 263.0},  # returns nothing yet
    )
    assert returns(found).tolist() == [100.0, 100.0, 50.0, 40.0]
    assert return_on_investment(found) == (100 + 40) / (5 + 15)
    assert return_on_investment(columns({"time_s": 0.0}, {"time_s": 1.0})) is None
    assert return_on_investment(columns({"time_s": 0.0, "invested_samples": 3.0})) is None
    assert return_on_investment(columns()) is None


def test_cumulative_samples_drop_at_a_decision_and_are_linear_in_between() -> None:
    found = columns(
        {"time_s": 10.0, "samples_before": 0.0, "samples": 0.0},
        {"time_s": 20.0, "samples_before": 100.0, "samples": 80.0},
        {"time_s": 40.0, "samples_before": 120.0, "samples": 120.0},
    )
    assert cumulative_samples(found, [0, 10, 15, 19.999, 30, 40, 99]) == pytest.approx(
        [0, 0, 50, 99.99, 100, 120, 120], abs=1e-9
    )


def test_sums_between_edges_take_the_beginning_and_not_the_end_but_for_the_last() -> None:
    found = columns(*({"time_s": time, "invested_samples": 1.0 + time} for time in (0.0, 5.0, 10.0, 20.0, 21.0)))
    assert sums_between(found, "invested_samples", [0.0, 10.0, 20.0]).tolist() == [7.0, 11.0 + 21.0]
    assert sums_between(found, "invested_samples", [30.0, 40.0]).tolist() == [0.0]


def test_mean_runtimes_are_of_jobs_that_were_done_from_their_admission() -> None:
    jobs = (
        record("a", "net", 3600.0),
        record("b", "net", 10_800.0, admitted_s=3600.0, started_s=5000.0),
        record("c", "other", 1800.0),
        record("d", "other"),
        record("e", "another"),
    )
    assert mean_runtime_hours(ReplayResult(columns(), jobs, 0)) == {"net": 1.5, "other": 0.5}


def test_measure_puts_the_figures_together() -> None:
    decisions = columns({"time_s": 0.0, "node_event": True}, {"time_s": 50.0, "node_event": True, "preempted": 1})
    jobs = (
        record("a", samples=300.0, unit=0.1, node_seconds=5400.0, preemptions=1, preemption_samples=7.0, rescales=2),
        record("b", "net", 60.0, samples=200.0, unit=0.2, node_seconds=1800.0, rescale_samples=4.0, rescales=1),
    )
    found = measure(ReplayResult(decisions, jobs, 2), Baselines(4.0, 2.0, 100.0, 90.0), 120.0)
    assert found.utilization_efficiency == (300 * 0.1 + 200 * 0.2) / 100
    assert found.zero_cost_bound == 0.9
    assert found.occupied_fraction == 0.5
    assert (found.samples, found.preemption_cost_samples, found.rescale_cost_samples) == (500.0, 7.0, 4.0)
    assert (found.preempted_jobs, found.rescales, found.jobs_completed) == (1, 3, 1)
    assert (found.events, found.decisions) == (2, 2)
    assert found.preemption_within_forward == 0.5
    assert (found.resource_integral_node_hours, found.equivalent_nodes, found.static_outcome) == (4.0, 2.0, 100.0)


def test_nothing_to_compare_with_is_nothing_reached() -> None:
    found = measure(ReplayResult(columns(), (), 0), Baselines(0.0, 0.0, 0.0), 120.0)
    assert found.utilization_efficiency == found.occupied_fraction == 0.0
    assert found.zero_cost_bound is None
    assert np.isfinite(found.samples)
