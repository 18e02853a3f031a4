"""`malletrain reproduce fleet`: its simulations and its tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.cli.fleet.ensemble_file import read_ensemble
from malletrain.fleet.problem import BeyondPeak
from malletrain.reproduce.fleet import trials as fleet_trials
from malletrain.reproduce.fleet.exhibits import paper_exhibits, sweep_exhibits
from malletrain.reproduce.fleet.networks import rank_correlation, supplement_exhibits
from malletrain.reproduce.fleet.trials import (
    GPUS,
    WAYS,
    FleetPlanOfTrials,
    FleetResults,
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
        ("longest first", (47968, 26444, 20117, 20117, 20117, 20117, 20117, 20117)),
        ("one after the other", (71014, 49439, 44101, 41940, 40946, 40475, 40229, 40082)),
        ("fleet-local", (61840, 37399, 25403, 21013, 20505, 19204, 18582, 17141)),
        ("fleet, to the letter", (64182, 33027, 24231, 21054, 21557, 16804, 13387, 16995)),
        ("fleet", (64182, 33027, 22870, 16954, 14085, 11630, 10141, 8856)),
        ("lower bound", (46522, 23261, 15563, 11878, 9727, 8299, 7262, 6464)),
    ],
)
def test_ways_without_luck(how: str, seconds: tuple[float, ...]) -> None:
    found = [run_fleet_trial(FleetTrial(how, gpus)).seconds for gpus in GPUS]
    assert found == pytest.approx(seconds, abs=0.5)


def test_flotillas_of_the_published_ensemble() -> None:
    found = [run_fleet_trial(FleetTrial("fleet", gpus)).flotillas for gpus in GPUS]
    assert found == [38, 27, 24, 22, 21, 19, 19, 20]


@pytest.mark.parametrize(
    ("gpus", "known", "believed", "reference"),
    [(20, 46659, 46834, 48843), (80, 12065, 12527, 12636), (160, 6830, 7259, 7400)],
)
def test_dividing_by_remaining_work(gpus: int, known: float, believed: float, reference: float) -> None:
    found = [run_fleet_trial(FleetTrial("makespan", gpus, epochs_known=flag)).seconds for flag in (True, False)]
    assert found == pytest.approx([known, believed], rel=0.01)
    # How plans of this kind are refined is free: no slower than those of the reference.
    assert found[1] <= reference
    assert found[0] >= run_fleet_trial(FleetTrial("lower bound", gpus)).seconds


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
        (gpus, float(f"{seconds:.5g}")) for gpus, seconds in zip(GPUS, fleet_trials.FLEET_SECONDS, strict=True)
    ]
    assert {row[0] for row in exhibits["times"].rows} == WAYS.keys()
    assert len(exhibits["figure-5"].rows) == len(exhibits["figure-6"].rows) == len(GPUS)
    letter = found[FleetTrial("fleet, to the letter", 80)].seconds
    assert exhibits["table-4"].rows[3][2] == letter
    # Over longest first, and over one after the other.
    base = [found[FleetTrial(how, 80)].seconds for how in ("longest first", "one after the other")]
    ours = exhibits["figure-5-others"].rows[3]
    assert ours[1] == pytest.approx(base[0] / letter, rel=0.01)
    assert ours[5] == pytest.approx(base[1] / letter, rel=0.01)
    assert all(len(exhibit.columns) == len(row) for exhibit in exhibits.values() for row in exhibit.rows)
    assert exhibits.keys() == {
        *("table-3", "table-4", "figure-5", "figure-5-others", "figure-6", "times"),
        *("preprocessing", "tolerance", "active-share", "noise", "epochs"),
    }


def test_the_supplements_figures() -> None:
    single, by_size, profiled = supplement_exhibits()
    counts = {str(row[0]): row[1] for row in single.rows}
    assert sum(int(count or 0) for count in counts.values()) == len(fleet_trials.MEMBERS)
    assert counts["160 to 180"] == 1  # the fastest has 176
    assert "-0.95 with rates and -0.17 with epochs" in by_size.remark
    assert profiled.rows[0] == (1, 21.3, 50.8, 176.0, 1.0, 1.0, 1.0)
    assert [row[0] for row in profiled.rows] == list(range(1, 9))
    assert all(exhibit.figure is not None for exhibit in (single, by_size, profiled))


def test_rank_correlation() -> None:
    assert rank_correlation([1.0, 2.0, 9.0], [10.0, 11.0, 12.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert rank_correlation([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]) == pytest.approx(1.0)
