"""A drawn log of which the idle share is known, through the commands of the quick start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from malletrain.cli.trace import trace_app
from tests.support.accounting_year import DrawnYear, YearSpec

MAX_POINTS = 0.1


@pytest.mark.parametrize(("zone", "told"), [("UTC", False), ("Europe/Berlin", False), ("America/New_York", True)])
def test_the_idle_share_is_that_of_the_system(tmp_path: Path, zone: str, told: bool) -> None:
    # A year, so that clocks change twice.
    year = DrawnYear(YearSpec(nodes=120, days=365, runs=12_000, zone=zone, runaway=12))
    log, out = tmp_path / "jobs.txt", tmp_path / "site.csv.gz"
    with log.open("w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(year.lines())
    options = ["--zone", zone] if told else []
    done = CliRunner().invoke(trace_app, ["convert", "--from", "sacct", str(log), "--out", str(out), *options])
    assert done.exit_code == 0, done.exception
    assert "runaway jobs" in done.output
    described = CliRunner().invoke(trace_app, ["describe", str(out), "--json"])
    found = json.loads(described.output)
    assert found["nodes"] == 120
    assert 100 * abs(found["idle_ratio"] - year.idle_share) < MAX_POINTS
    about = json.loads((tmp_path / "site.json").read_text())["conversion"]
    assert about["rows_used"] == year.runs
    assert about["skipped_row_share"] == 0
    assert about["runs_without_end"]["taken_as_ended"] >= 10


def test_a_month_of_it_as_the_quick_start_asks(tmp_path: Path) -> None:
    year = DrawnYear(YearSpec(nodes=60, days=31, runs=4_000, runaway=2, seed=5))
    log, out = tmp_path / "jobs.txt", tmp_path / "site.csv"
    log.write_text("".join(year.lines()), encoding="utf-8", errors="surrogateescape")
    assert CliRunner().invoke(trace_app, ["convert", "--from", "sacct", str(log), "--out", str(out)]).exit_code == 0
    found = json.loads(CliRunner().invoke(trace_app, ["describe", str(out), "--json"]).output)
    assert 100 * abs(found["idle_ratio"] - year.idle_share) < MAX_POINTS
