"""`malletrain reproduce bbsched`: its trials, its tables, and how the work is spread."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from malletrain.cli.reproduce.command import reproduce
from malletrain.reproduce.bbsched.exhibits import exhibits_of
from malletrain.reproduce.bbsched.searches import distances, example, workloads
from malletrain.reproduce.bbsched.trials import (
    METHODS,
    SSD_METHODS,
    BatchPlan,
    BatchResults,
    BatchTrial,
    SiteLog,
    run_trial,
)
from malletrain.reproduce.executors import spread
from malletrain.runtime.errors import InvalidInputError

SOME = ("s1", "s2", "s3", "s4")
app = typer.Typer()
app.command()(reproduce)
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


@pytest.fixture
def log(tmp_path: Path) -> SiteLog:
    jobs = "".join(f"{n},{n * 60},{1 + n % 60},{600 + n},3600,{n * 100}\n" for n in range(1, 101))
    path = tmp_path / "site.csv"
    path.write_text(f"job,submit_s,nodes,run_s,estimate_s,burst_buffer_gb\n{jobs}")
    path.with_suffix(".json").write_text('{"nodes": 64, "burst_buffer_gb": 1260000}')
    return SiteLog(path)


def test_a_log_of_ones_own_takes_the_place_of_generated_jobs(log: SiteLog) -> None:
    assert log.parts(40) == 2
    second = log.part(1, 40)
    assert [second.jobs[0].number, second.jobs[0].submit_s, second.jobs[-1].submit_s] == [41, 0.0, 39 * 60.0]
    with pytest.raises(InvalidInputError, match=r"site\.csv: expected at least 120 jobs"):
        log.part(2, 40)
    plan = BatchPlan(seeds=2, jobs=40, log=log)
    found = {
        trial: replace(run_trial(replace(trial, harvest=False)), equivalent_nodes=1.0, efficiency=0.5)
        for trial in plan.trials()
    }
    exhibits = {exhibit.name: exhibit for exhibit in exhibits_of(BatchResults(plan, found))}
    assert {row[0] for row in exhibits["figure-8"].rows} == {f"yours-{recipe}" for recipe in ("original", *SOME)}
    assert len(exhibits["figure-8"].rows) == 5 * len(METHODS)
    assert "parts of your log" in exhibits["figure-8"].remark


def test_the_command_says_what_a_log_lacks(log: SiteLog, tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        arguments = ["bbsched", "--out", str(tmp_path / "out"), "--workload", str(log.path), *options]
        done = CliRunner().invoke(app, arguments)
        assert isinstance(done.exception, InvalidInputError), done.output
        return str(done.exception)

    assert "--batch-jobs: expected at most as many jobs as" in refused("--batch-jobs", "200")
    assert "burst_buffer: expected a machine with more than" in refused(
        "--batch-jobs", "100", "--burst-buffer", "15000"
    )
    done = CliRunner().invoke(app, ["fleet", "--out", str(tmp_path / "out"), "--workload", str(log.path)])
    assert "--workload: expected nothing but with PAPER bbsched" in str(done.exception)


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
