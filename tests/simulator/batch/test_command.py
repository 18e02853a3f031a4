"""`malletrain batch`: output, files, determinism, refusals."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from malletrain.cli.simulate.batch import batch
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.batch.idle import idle_trace_of
from malletrain.simulator.batch.schedule import node_list, node_names
from tests.simulator.batch.test_policies import CASE
from tests.simulator.batch.workloads import lublin_like, swf_line, swf_text

app = typer.Typer()
app.command()(batch)


def write_log(path: Path, jobs: Any = CASE.jobs, **header: object) -> Path:
    lines = [
        swf_line(job.number, int(job.submit_s), int(job.run_s), job.nodes, requested_time=int(job.estimate_s))
        for job in jobs
    ]
    path.write_text(swf_text(lines, **(header or {"MaxNodes": 4, "UnixStartTime": 1612137600})))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_json_tells_everything(tmp_path: Path) -> None:
    answer = json.loads(run("--workload", write_log(tmp_path / "x.swf"), "--json", "--window", "all").stdout)
    assert answer["policy"] == "easy"
    assert (answer["nodes"], answer["processorsPerNode"]) == (4, 1)
    assert answer["firstSubmit"] == "2021-02-01T00:00:00+00:00"
    assert answer["statistics"]["jobs"] == 5
    assert answer["statistics"]["makespanS"] == 23.0
    assert answer["statistics"]["utilisation"] == pytest.approx(67 / 92)
    assert answer["skipped"] == dict.fromkeys(
        ("cancelled", "partial", "withoutRunTime", "withoutProcessors", "tooLarge"), 0
    )
    assert answer["idle"]["fragments"] == 6
    assert answer["idle"]["nodeHours"] == pytest.approx(25 / 3600)
    assert answer["idle"]["share"] == pytest.approx(25 / 92)


def test_a_table_for_people(tmp_path: Path) -> None:
    path = write_log(tmp_path / "x.swf")
    done = run("--workload", path, "--policy", "wfp", "--nodes", 6)
    assert done.exit_code == 0
    assert "wfp" in done.stdout
    assert "processors per node" in done.stdout
    assert "utilisation" in done.stdout


def test_the_folder_holds_schedule_trace_and_summary(tmp_path: Path) -> None:
    path = write_log(tmp_path / "x.swf")
    printed = run("--workload", path, "--out", tmp_path / "out", "--json").stdout
    assert read_trace(tmp_path / "out" / "idle.csv.gz") == idle_trace_of(path)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == json.loads(printed)
    rows = list(csv.DictReader((tmp_path / "out" / "schedule.csv").read_text().splitlines()))
    assert [row["job"] for row in rows] == ["1", "3", "5", "2", "4"]
    assert rows[3] == {
        "job": "2",
        "line": "4",
        "submit_s": "1",
        "start_s": "10",
        "end_s": "15",
        "wait_s": "9",
        "estimate_s": "5",
        "reserved_s": "10",
        "killed": "false",
        "nodes": "3",
        "node_list": "n[0001-0002,0004]",
    }
    assert rows[0]["reserved_s"] == ""


def test_parquet_and_packed_csv_hold_the_same_as_csv(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write_log(tmp_path / "x.swf")
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        run("--workload", path, "--schedule", tmp_path / name, "--policy", "fcfs")
    plain = (tmp_path / "a.csv").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == plain
    rows = list(csv.DictReader(plain.decode().splitlines()))
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column_names == list(rows[0])
    found = table.to_pylist()
    assert [(str(row["job"]), row["start_s"], row["node_list"]) for row in found] == [
        (row["job"], float(row["start_s"]), row["node_list"]) for row in rows
    ]
    assert all(row["reserved_s"] is None for row in found)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    path = write_log(tmp_path / "x.swf", lublin_like(300, 32, 0.9, seed=3).jobs, MaxProcs=32)
    for name in ("first", "second"):
        folder = tmp_path / name
        run("--workload", path, "--policy", "wfp", "--out", folder, "--schedule", tmp_path / f"{name}.parquet")
    files = sorted(entry.name for entry in (tmp_path / "first").iterdir())
    assert files == ["idle.csv.gz", "idle.json", "schedule.csv", "summary.json"]
    for name in files:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert (tmp_path / "first.parquet").read_bytes() == (tmp_path / "second.parquet").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--schedule", "x.txt"), "--schedule: expected a name that ends in .csv, .csv.gz, .parquet, got 'x.txt'"),
        (("--trace", "x.gz"), "--trace: expected a name that ends in .csv, .csv.gz, .parquet, got 'x.gz'"),
        (("--trace", "/no/such/folder/x.csv"), "--trace: expected a file in a folder that exists"),
        (("--min-idle", "-1"), "--min-idle: expected seconds, at least 0, got -1.0"),
        (("--nodes", "2"), "x.swf:4: allocated processors: expected at most 2 nodes"),
        (("--trace", "x.csv", "--min-idle", "1e6"), "--trace: expected a workload that leaves idle nodes"),
    ],
)
def test_what_cannot_be_done_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "x.swf")
    with pytest.raises(InvalidInputError) as refused:
        run("--workload", "x.swf", *arguments)
    assert message in str(refused.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.swf"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path / "x.swf")
    with pytest.raises(InvalidInputError, match="expected files that can be written"):
        run("--workload", path, "--out", path)


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ((range(4, 5),), "n0005"),
        ((range(0, 4),), "n[0001-0004]"),
        ((range(0, 1), range(2, 3), range(7, 9)), "n[0001,0003,0008-0009]"),
    ],
)
def test_node_lists_are_written_as_batch_systems_do(ranges: tuple[range, ...], text: str) -> None:
    assert node_list(ranges, node_names(9)) == text
