"""`malletrain reproduce bbsched`: its trials, its tables, and how the work is spread."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.reproduce.bbsched_exhibits import exhibits_of
from malletrain.simulator.reproduce.bbsched_plan import METHODS, SSD_METHODS, BatchPlan, BatchResults
from malletrain.simulator.reproduce.bbsched_searches import distances, example, workloads
from malletrain.simulator.reproduce.bbsched_trials import BatchTrial, run_trial
from malletrain.simulator.reproduce.executors import spread

TRIAL = BatchTrial("theta", "s4", "bbsched", 0, 100)


def test_every_exhibit_has_a_row_for_each_method() -> None:
    plan = BatchPlan(seeds=2, jobs=40)
    # Without trainings, which take longer than all the rest.
    found = {
        trial: replace(run_trial(replace(trial, harvest=False)), equivalent_nodes=100.0 + trial.seed, efficiency=0.5)
        for trial in plan.trials()
    }
    exhibits = {exhibit.name: exhibit for exhibit in exhibits_of(BatchResults(plan, found))}
    names = [f"figure-{number}" for number in range(6, 15)]
    assert exhibits.keys() == {*names, "table-3", "readings", "left-for-us"}
    for name in ("figure-6", "figure-7", "figure-8", "figure-12", "figure-13"):
        assert len(exhibits[name].rows) == 10 * len(METHODS)
    assert len(exhibits["figure-14"].rows) == 6 * len(SSD_METHODS)
    waits = [row for row in exhibits["figure-8"].rows if row[1] == "baseline"]
    assert all(row[3:] == (0.0, 0.0) for row in waits), "the baseline differs from itself"
    rows = exhibits["left-for-us"].rows
    assert [row[1] for row in rows] == [*METHODS, *METHODS]
    assert all(math.isclose(sum(float(share or 0) for share in row[10:]), 100.0, rel_tol=1e-2) for row in rows)


def test_trainings_are_replayed_on_the_idle_nodes() -> None:
    found = run_trial(replace(TRIAL, harvest=True))
    assert found.metrics == run_trial(TRIAL).metrics
    assert found.equivalent_nodes is not None
    assert 0 < found.equivalent_nodes < 4392
    assert found.efficiency is not None
    assert 0 < found.efficiency < 1


def test_searches() -> None:
    assert [row[1] for row in example().rows][-1] == "J2, J3, J4, J5: 80 %, 90 %"
    first, *_, last = distances(random.Random(1)).rows
    assert all(float(more or 0) < float(less or 0) for less, more in zip(first[1:], last[1:], strict=True))
    assert len(workloads(100).rows) == 10


def test_work_is_spread_and_comes_back_in_order() -> None:
    trials = [replace(TRIAL, seed=seed, jobs=20) for seed in range(3)]
    assert list(spread("local", 2, run_trial, trials)) == list(spread("local", 1, run_trial, trials))
    with pytest.raises(InvalidInputError, match="--executor"):
        spread("elsewhere", 1, run_trial, trials)
