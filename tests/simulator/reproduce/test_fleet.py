"""`malletrain reproduce fleet`: its simulations and its tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.cli.fleet.ensemble_file import read_ensemble
from malletrain.fleet.problem import BeyondPeak
from malletrain.simulator.reproduce import fleet_published as published
from malletrain.simulator.reproduce.fleet_exhibits import paper_exhibits
from malletrain.simulator.reproduce.fleet_plan import FleetPlanOfTrials, FleetResults
from malletrain.simulator.reproduce.fleet_published import GPUS
from malletrain.simulator.reproduce.fleet_sweeps import sweep_exhibits
from malletrain.simulator.reproduce.fleet_trials import (
    WAYS,
    FleetTrial,
    FleetTrialResult,
    published_problem,
    run_fleet_trial,
)
from tests.support.shared import shared_path


def test_the_published_ensemble_is_that_of_the_public_instances() -> None:
    for name, beyond in (("p3-published-ensemble-80", "avoid"), ("p4-published-ensemble-80-beyond-peak", "allow")):
        given = read_ensemble(shared_path(f"fleet/instances/{name}.json")).problem
        assert replace(published_problem(80), name=name, beyond_peak=BeyondPeak(beyond)) == given


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("longest first", 20117),
        ("one after the other", 41940),
        ("fleet-local", 21013),
        ("fleet, to the letter", 21054),
        ("fleet", 16954),
        ("lower bound", 11878),
    ],
)
def test_ways_without_luck_at_80_gpus(how: str, seconds: float) -> None:
    assert run_fleet_trial(FleetTrial(how, 80)).seconds == pytest.approx(seconds, abs=0.5)


def test_random_orders_and_noise_come_from_the_seed() -> None:
    for trial in (FleetTrial("random order", 40), FleetTrial("fleet", 40, noise=0.2)):
        assert run_fleet_trial(trial) == run_fleet_trial(trial)
        assert run_fleet_trial(trial) != run_fleet_trial(replace(trial, seed=1))


def test_planners_that_are_wrong_about_rates_still_train_at_true_ones() -> None:
    bound = run_fleet_trial(FleetTrial("lower bound", 80)).seconds
    for how in ("fleet", "makespan", "longest first"):
        assert run_fleet_trial(FleetTrial(how, 80, noise=0.2)).seconds > bound


def test_unknown_epochs_matter_to_those_who_ask_for_them() -> None:
    for how, differs in (("fleet", False), ("longest first", True), ("makespan", True)):
        known, unknown = (run_fleet_trial(FleetTrial(how, 40, epochs_known=known)) for known in (True, False))
        assert (known != unknown) is differs


def test_sharing_pays_where_preprocessing_is_slow() -> None:
    slow, fast = (
        {how: run_fleet_trial(FleetTrial(how, 40, rate)).seconds for how in ("fleet", "longest first")}
        for rate in (18.5, 200.0)
    )
    assert slow["longest first"] / slow["fleet"] == pytest.approx(1.9, abs=0.15)
    assert fast["longest first"] < fast["fleet"]


def test_every_exhibit_has_a_row_for_each_setting() -> None:
    plan = FleetPlanOfTrials(orders=2, seeds=2)
    trials = plan.trials()
    assert len(set(trials)) == len(trials)
    assert {trial.how for trial in trials} == WAYS.keys()
    # No simulations: their place in the tables is looked at.
    found = {
        trial: FleetTrialResult(1000.0 + place, 3, 1.0, ((2.0, 1.0),) * 3, (2.0, 1.0))
        for place, trial in enumerate(trials)
    }
    results = FleetResults(plan, found)
    exhibits = {exhibit.name: exhibit for exhibit in (*paper_exhibits(results), *sweep_exhibits(results))}
    assert [row[:2] for row in exhibits["table-4"].rows] == [
        (gpus, float(f"{seconds:.5g}")) for gpus, seconds in zip(GPUS, published.FLEET_SECONDS, strict=True)
    ]
    assert {row[0] for row in exhibits["times"].rows} == WAYS.keys()
    assert len(exhibits["figure-5"].rows) == len(exhibits["figure-6"].rows) == len(GPUS)
    letter = found[FleetTrial("fleet, to the letter", 80)].seconds
    assert exhibits["table-4"].rows[3][2] == letter
    assert all(len(exhibit.columns) == len(row) for exhibit in exhibits.values() for row in exhibit.rows)
    assert exhibits.keys() == {
        *("table-3", "table-4", "figure-5", "figure-6", "times"),
        *("preprocessing", "tolerance", "active-share", "noise", "epochs"),
    }
