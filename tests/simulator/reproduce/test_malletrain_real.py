"""The file of real trainings: read, refused with the field's name, and shown on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from malletrain.cli.main import application
from malletrain.cli.reproduce.command import real_exhibits
from malletrain.reproduce.exhibits import PAGE, write_report
from malletrain.reproduce.malletrain.real import (
    RealEvaluation,
    RealJob,
    RealRun,
    evaluation_of,
    gains,
    real_exhibit,
    rows_of,
    text_of,
)
from malletrain.reproduce.malletrain.systems import System
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.options import ReplayOptions

JOB = RealJob("nas-0", "conv3x3; 0-1 1-2", "RUNNING", 1000, 2, 1, 0.25, 0.125)


def run(system: System, seed: int, samples: int) -> RealRun:
    return RealRun(system, seed, samples, 0, 4, 2, 3, 2, 100.0, 12.5, 1000.0, 900.0, (JOB,))


EVALUATION = RealEvaluation(
    machine="2 cores of a <processor>, 8 GiB, no GPU",
    pace="Steps are paced.",
    nodes=8,
    seconds=240.0,
    trace_seconds=900.0,
    max_parallel=4,
    job_samples=20_000,
    runs=(
        run(System.LINEAR, 0, 10_000),
        run(System.PROFILED, 0, 11_000),
        run(System.PROFILED, 1, 24_000),
        run(System.LINEAR, 1, 20_000),
    ),
)
Edit = Callable[[dict[str, Any]], object]


def test_written_and_read_again() -> None:
    assert evaluation_of(text_of(EVALUATION), "nas.json") == EVALUATION


def test_gains_are_paired_by_seed() -> None:
    assert gains(EVALUATION, System.PROFILED) == pytest.approx([0.1, 0.2])
    assert gains(EVALUATION, System.LINEAR) == [0.0, 0.0]
    linear, profiled = rows_of(EVALUATION)
    assert linear[:4] == ("FreeTrain, linear guesses", 62.5, None, None)
    assert profiled[0] == "MalleTrain"
    assert profiled[2] == pytest.approx(15.0)
    assert profiled[3] == pytest.approx(63.55)
    assert profiled[-1] == pytest.approx(90.0)


def test_one_seed_has_no_interval() -> None:
    (_, profiled) = rows_of(replace(EVALUATION, runs=EVALUATION.runs[:2]))
    assert profiled[2:4] == (pytest.approx(10.0), None)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda d: d.pop("nodes"), "nodes"),
        (lambda d: d.update(nodes=0), "nodes"),
        (lambda d: d.update(nodes="8"), "nodes"),
        (lambda d: d.update(seconds=float("inf")), "seconds"),
        (lambda d: d.update(colour="red"), "colour"),
        (lambda d: d.update(runs={}), "runs"),
        (lambda d: d["runs"][1].update(samples=-1), r"runs\[1\].samples"),
        (lambda d: d["runs"][1].update(system="Slurm"), r"runs\[1\].system"),
        (lambda d: d["runs"][2]["jobs"][0].pop("cell"), r"runs\[2\].jobs\[0\].cell"),
        (lambda d: d["runs"][0].update(samples=0), r"runs\[0\].samples"),
        (lambda d: d.update(runs=[]), "runs: expected 'FreeTrain, linear guesses'"),
        (lambda d: d.update(runs=d["runs"][1:3]), "runs: expected 'FreeTrain, linear guesses'"),
        (lambda d: d.update(runs=d["runs"][:1]), "runs: .*another system"),
        (lambda d: d["runs"].pop(2), r"runs: expected each of the seeds \[0, 1\] once for 'MalleTrain', got \[0\]"),
        (lambda d: d["runs"][2].update(seed=0), r"runs: .*once for 'MalleTrain', got \[0, 0\]"),
    ],
)
def test_what_is_wrong_is_named(edit: Edit, field: str) -> None:
    content = json.loads(text_of(EVALUATION))
    edit(content)
    with pytest.raises(InvalidInputError, match=rf"^nas\.json: {field}"):
        evaluation_of(json.dumps(content), "nas.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", b"\xff\xfe"])
def test_what_is_no_such_file_at_all(text: str | bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"^nas\.json: expected what benchmarks/studies/nas\.py writes"):
        evaluation_of(text, "nas.json")


def test_the_page_shows_it_beside_the_paper(tmp_path: Path) -> None:
    options = ReplayOptions(duration_s=3600.0)
    written = write_report([real_exhibit(EVALUATION)], options, ["trace.csv"], tmp_path, "malletrain.html")
    page = (tmp_path / PAGE).read_text()
    assert [path.name for path in written] == [PAGE, "figure-12-real.csv", "figure-12-real.png"]
    assert "up to 22.3 % more" in page
    assert "2 cores of a &lt;processor&gt;" in page
    assert '<td class="n">15</td>' in page
    assert (tmp_path / "figure-12-real.csv").read_text().splitlines()[2].startswith("MalleTrain,72.92,15.0,63.5")


def test_the_command_reads_it_or_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "nas.json"
    assert real_exhibits(None) == []
    with pytest.raises(InvalidInputError, match=r"^--real: expected a file that can be read \(No such file"):
        real_exhibits(path)
    path.write_text("{}")
    with pytest.raises(InvalidInputError, match=r"^--real nas\.json: machine: expected"):
        real_exhibits(path)
    path.write_text(text_of(EVALUATION))
    assert [exhibit.name for exhibit in real_exhibits(path)] == ["figure-12-real"]


def test_it_belongs_to_malletrains_evaluation(tmp_path: Path) -> None:
    arguments = ["reproduce", "--trace", "none.csv", "--out", str(tmp_path / "out"), "--real", "nas.json"]
    done = CliRunner().invoke(application(), arguments)
    assert isinstance(done.exception, InvalidInputError)
    assert done.exception.field == "--real"
