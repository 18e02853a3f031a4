"""The pure part of `benchmarks/studies/ensemble_training.py`: the ensemble, ratios and tables."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.studies.ensembles.networks import (
    BATCH,
    GPUS,
    NETWORKS,
    SCARCE_MEMBERS,
    SCARCE_SIDE,
    SIDE,
    SIZE,
    accelerator_seconds,
    ensemble_file,
    problem,
)
from benchmarks.studies.ensembles.results import (
    WORDS,
    EnsembleRun,
    MemberResult,
    goals,
    positions_apart,
    summaries,
    table_of_members,
    table_of_variants,
)
from benchmarks.studies.ensembles.trial import WAYS
from malletrain.cli.fleet.ensemble_file import read_ensemble, read_members
from malletrain.fleet.lower_bound import lower_bound

MEMBERS = (MemberResult("a", 10.0, 384, 0.5, 0.8), MemberResult("b", 20.0, 768, 0.7, 0.9))
RUN = EnsembleRun("list", 20.0, 1152, 8.0, 2.0, 1, ("list",), 0, MEMBERS)
RUNS = (
    RUN,
    replace(RUN, variant="fleet", seconds=15.0, prepared=600, preparing_cpu_seconds=4.4),
    replace(RUN, variant="no-feed", seconds=40.0, preparing_cpu_seconds=8.0),
    replace(RUN, variant="fleet", seconds=17.0, prepared=700, preparing_cpu_seconds=4.8),
)


def test_ratios_are_of_medians() -> None:
    listed, fleet, alone = summaries(RUNS, 10.0)
    assert (listed.of_list, listed.of_bound) == (1.0, 2.0)
    assert (fleet.variant, fleet.seconds, fleet.prepared) == ("fleet", 16.0, 650)
    assert (fleet.of_list, fleet.of_bound) == (0.8, 1.6)
    assert fleet.cpu_share == pytest.approx(0.575)
    assert fleet.max_cpu_share == pytest.approx(0.6)
    assert fleet.test_loss == pytest.approx(0.6)
    assert alone.cpu_share == 1.0


def test_ratios_are_left_out_where_their_base_was_not_run() -> None:
    (fleet,) = summaries([replace(RUN, variant="fleet")], 10.0)
    assert fleet.of_list is None
    assert fleet.cpu_share is None
    assert (
        table_of_variants([fleet])
        .splitlines()[2]
        .startswith("| `fleet`, feed | 20.0 |  | 2.00 | 2.0 |  | 1,152 | 8.0 |  |")
    )
    assert goals([fleet]) == []


def test_tables() -> None:
    lines = table_of_variants(summaries(RUNS, 10.0), {"tensorsocket": "not installed"}).splitlines()
    assert lines[3] == "| `fleet`, feed | 16.0 | 0.80 | 1.60 | 2.0 |  | 650 | 4.6 | 0.57 | 1 | 0.600 | 0.85 |"
    assert lines[5].startswith("| `auto`, TensorSocket | not installed |")
    assert len({line.count("|") for line in lines}) == 1
    members = table_of_members(RUNS).splitlines()
    assert members[0] == "| test loss, accuracy | a | b |"
    assert members[2] == "| `list`, feed | 0.500, 0.80 | 0.700, 0.90 |"


def test_goals_are_met_or_missed() -> None:
    found = goals(summaries(RUNS, 10.0))
    assert [goal.words.partition(":")[0] for goal in found] == ["`list`, feed", "`fleet`, feed"]
    cheap, dear = (
        replace(RUN, variant="fleet", preparing_cpu_seconds=6.0),
        replace(RUN, variant="fleet", preparing_cpu_seconds=6.2),
    )
    alone = replace(RUN, variant="no-feed", preparing_cpu_seconds=10.0)
    # Two members at once: at most 1.2 / 2.
    assert [goal.met for goal in goals(summaries([cheap, alone], 10.0))] == [True]
    assert [goal.met for goal in goals(summaries([dear, alone], 10.0))] == [False]


def test_members_at_other_positions_cannot_share() -> None:
    assert [positions_apart(each, 10) for each in ([], [5], [0, 10, 20], [0, 11, 21, 40])] == [0, 1, 1, 3]
    run = replace(RUN, variant="fleet", preparing_cpu_seconds=7.0, members_at_once=3.0, members_together=1.5)
    (goal,) = goals(summaries([run, replace(RUN, variant="no-feed", preparing_cpu_seconds=10.0)], 10.0))
    assert goal.met
    assert "at most 0.80 with 1.5 members at one position, 0.40 if all 3.0 members at once were" in goal.words
    assert EnsembleRun.of(asdict(run)) == run


def test_auto_is_to_be_about_as_quick_as_the_best_other_way() -> None:
    for seconds, met in ((21.0, True), (21.1, False)):
        runs = [RUN, replace(RUN, variant="auto", seconds=seconds), replace(RUN, variant="milp", seconds=30.0)]
        (goal,) = goals(summaries(runs, 10.0))
        assert goal.met is met
        assert goal.words.startswith(
            f"`auto`, feed: {seconds / 20:.2f} of the time of the best other way (`list`, feed)"
        )
    assert goals(summaries([replace(RUN, variant="auto")], 10.0)) == []


def test_where_preparing_is_the_bottleneck_members_ask_for_more_than_before() -> None:
    # Pictures of twice the side cost four times as much.
    assert SCARCE_SIDE == 2 * SIDE
    assert len(NETWORKS[:SCARCE_MEMBERS]) == GPUS


def test_a_run_can_be_read_again() -> None:
    assert EnsembleRun.of(asdict(RUN)) == RUN
    assert WORDS.keys() == WAYS.keys()


def test_the_file_is_what_the_bound_is_computed_of(tmp_path: Path) -> None:
    path = tmp_path / "ensemble.toml"
    path.write_text(ensemble_file(NETWORKS, "auto", 250.0, {"A": "b"}))
    found, meant = read_ensemble(path).problem, problem(NETWORKS, 250.0)
    assert [(model.id, model.epochs) for model in found.models] == [(one.name, one.epochs) for one in NETWORKS]
    assert (found.gpus, found.samples_per_epoch, found.tolerance) == (GPUS, SIZE, meant.tolerance)
    assert lower_bound(found) == pytest.approx(lower_bound(meant), rel=1e-3)
    assert read_members(path).fleet.environment == {"A": "b"}
    assert SIZE % (8 * BATCH) == 0


def test_members_are_faster_on_more_gpus_but_not_in_proportion() -> None:
    for network in NETWORKS:
        rates = network.rates
        assert rates[0] == pytest.approx(BATCH / network.step_seconds)
        assert all(one < more for one, more in pairwise(rates))
        assert all(rate < gpus * rates[0] for gpus, rate in enumerate(rates[1:], 2))
    assert accelerator_seconds(0.1, 8, 2) == pytest.approx(0.02 + 0.04 + 0.01)
