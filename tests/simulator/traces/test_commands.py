"""`malletrain trace`: what users see."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from malletrain.cli.trace import trace_app
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.trace_files import read_trace, write_trace
from malletrain.simulator.traces.describe import describe
from tests.simulator.traces.test_convert import PBS, POLLS, SACCT

SWF = """\
; MaxNodes: 4
; MaxProcs: 4
1 0 0 100 2 -1 -1 2 100 -1 1 1 1 1 1 -1 -1 -1
2 10 0 100 4 -1 -1 4 100 -1 1 1 1 1 1 -1 -1 -1
3 20 0 50 1 -1 -1 1 50 -1 1 1 1 1 1 -1 -1 -1
4 400 0 50 1 -1 -1 1 50 -1 1 1 1 1 1 -1 -1 -1
"""


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "known.csv"
    trace = generate(40, 24 * 3600.0, 0.2, random.Random(4))
    write_trace(
        Trace(trace.fragments, trace.nodes, trace.duration_s, 0.0, "2021-02-10T20:21:15"),
        path,
        {"system": "Toy", "sampling_s": 1},
    )
    return path


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace_app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path) -> InvalidInputError:
    done = call(*arguments)
    assert isinstance(done.exception, InvalidInputError), done.output
    return done.exception


def test_describe_as_tables_json_and_files(trace_file: Path, tmp_path: Path) -> None:
    found = describe(read_trace(trace_file))
    done = call("describe", trace_file)
    assert done.exit_code == 0
    assert f"{found.equivalent_nodes:.2f}" in done.output
    assert f"INC/h {found.inc_per_hour:.1f}" in done.output
    folder = tmp_path / "out"
    printed = json.loads(call("describe", trace_file, "--json", "--out", folder).output)
    assert printed["events"] == found.events
    assert printed["hazards"][1] == {
        "age_s": 60.0,
        "fragments": found.hazards[1].fragments,
        "gone": found.hazards[1].gone,
    }
    curve = [line.split(",") for line in (folder / "fragment_cdf.csv").read_text().splitlines()]
    assert curve[0] == ["at_most_s", "fragments", "node_time"]
    assert [float(share) for share in curve[-1][1:]] == pytest.approx([1, 1])
    assert (folder / "fragment_cdf.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} == {
        "statistics.csv", "fragment_cdf.csv", "fragment_cdf.png", "event_gaps.csv", "hazards.csv",
    }  # fmt: skip


def test_describe_a_part(trace_file: Path) -> None:
    printed = json.loads(call("describe", trace_file, "--json", "--nodes", "7", "--hours", "2.5").output)
    assert (printed["nodes"], printed["duration_s"]) == (7, 9000)
    assert refused("describe", trace_file, "--nodes", "41").field == "--nodes"
    assert refused("describe", trace_file, "--hours", "25").field == "--hours"
    assert refused("describe", trace_file, "--hours", "nan").field == "--hours"
    assert refused("describe", trace_file, "--out", trace_file).field == "--out"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [("sacct", SACCT, 3), ("pbs", PBS, 5), ("polling", POLLS, 4)],
)
def test_convert_logs(tmp_path: Path, name: str, text: str, expected: int) -> None:
    log, out = tmp_path / "log", tmp_path / "t.csv.gz"
    log.write_text(text)
    done = call("convert", "--from", name, log, "--out", out)
    assert done.exit_code == 0, done.exception
    assert f"{out}: {expected} idle fragments" in done.output
    assert len(read_trace(out).fragments) == expected
    metadata = json.loads((tmp_path / "t.json").read_text())
    assert metadata["source"] == f"{name}: log"
    assert metadata["origin"] == read_trace(out).origin


def test_convert_takes_its_options(tmp_path: Path) -> None:
    log, nodes, out = tmp_path / "log", tmp_path / "nodes", tmp_path / "t.csv"
    log.write_text(SACCT)
    nodes.write_text("gpu1\nn[1-3]\n")
    window = ("--window", "2026-11-21T00:00:00", "2026-11-21T01:00:00")
    assert call("convert", "--from", "sacct", log, "--out", out, "--nodes", nodes, *window).exit_code == 0
    assert Fragment("n3", 0, 3600) in read_trace(out).fragments
    log.write_text(POLLS)
    assert call("convert", "--from", "polling", log, "--out", out, "--debounce", "1").exit_code == 0
    assert len(read_trace(out).fragments) == 3


def test_convert_a_workload(tmp_path: Path) -> None:
    log, out = tmp_path / "log.swf", tmp_path / "t.csv"
    log.write_text(SWF)
    done = call("convert", "--from", "swf", log, "--out", out, "--policy", "fcfs", "--nodes-count", "4")
    assert done.exit_code == 0, done.exception
    trace = read_trace(out)
    assert len(trace.nodes) == 4
    # Job 2 needs all nodes: two of them idle until job 1 ends.
    assert sum(entry.idle_until_s == 100 for entry in trace.fragments) == 2


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_convert_fragments_keeps_what_is_known(trace_file: Path, tmp_path: Path, name: str) -> None:
    first, back = tmp_path / "new" / name, tmp_path / "new" / "back.csv"
    first.parent.mkdir()
    assert call("convert", "--from", "fragments", trace_file, "--out", first).exit_code == 0
    assert call("convert", "--from", "fragments", first, "--out", back).exit_code == 0
    assert back.read_bytes() == trace_file.read_bytes()
    assert json.loads(back.with_suffix(".json").read_text()) == json.loads(trace_file.with_suffix(".json").read_text())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--from", "polling", "LOG", "--window", "a", "b"], "--window"),
        (["--from", "sacct", "LOG", "--debounce", "1"], "--debounce"),
        (["--from", "fragments", "LOG", "--nodes", "LOG"], "--nodes"),
        (["--from", "pbs", "LOG", "--policy", "easy"], "--policy"),
        (["--from", "swf", "LOG", "LOG"], "INPUT"),
    ],
)
def test_convert_names_what_is_wrong(tmp_path: Path, arguments: list[str], field: str) -> None:
    log = tmp_path / "log"
    log.write_text(SACCT)
    given = [str(log) if word == "LOG" else word for word in arguments]
    assert refused("convert", *given, "--out", tmp_path / "t.csv").field == field


def test_a_log_in_which_nothing_is_idle(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(SACCT.splitlines()[:2]) + "\n")
    assert "at least one node that is idle" in str(refused("convert", "--from", "sacct", log, "--out", "t.csv"))


def test_nothing_is_half_written(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "t.csv"
    log.write_text(SACCT)
    out.write_text("before")
    (tmp_path / "t.json").mkdir()
    assert refused("convert", "--from", "sacct", log, "--out", out).field == "--out"
    assert out.read_text() == "before"
    log.write_text(SACCT + "6|soon|soon|n1|R\n" * 2)
    assert "at most 1.00% of a log" in str(refused("convert", "--from", "sacct", log, "--out", out))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "t.csv", "t.json"]


def test_what_was_skipped_and_assumed_is_printed_and_kept(tmp_path: Path) -> None:
    log, out, again = tmp_path / "log", tmp_path / "t.csv", tmp_path / "again.csv"
    log.write_text(SACCT + "6|2026-11-21T00:01:00|soon|n1|COMPLETED\n")
    done = call("convert", "--from", "sacct", log, "--out", out, "--only-nodes", "n[1-2]")
    assert "window: 2026-11-21T00:01:40 to 2026-11-21T00:04:10" in done.output
    assert "skipped 1 row: a time that can't be read" in done.output
    assert "nodes of the log that --only-nodes leaves out: 1" in done.output
    about = json.loads(out.with_suffix(".json").read_text())["conversion"]
    assert done.output.splitlines()[:-1] == about["notes"]
    assert about["rows_without_run"] == {"steps of jobs": 1, "jobs that never started": 1, "jobs of no length": 1}
    assert call("convert", "--from", "fragments", out, "--out", again).exit_code == 0
    assert json.loads(again.with_suffix(".json").read_text())["conversion"] == about


def test_convert_a_table_by_its_columns(tmp_path: Path) -> None:
    log, out = tmp_path / "jobs.csv", tmp_path / "t.csv"
    log.write_text("a,b,c\n100,200,2\n300,400,1\n500,600,2\n")
    columns = ("--column", "start=a", "--column", "end=b", "--column", "slots=c")
    done = call("convert", "--from", "csv", log, "--out", out, *columns, "--nodes-count", "2", "--slots-per-node", "2")
    assert done.exit_code == 0, done.exception
    assert {(entry.node, entry.idle_from_s) for entry in read_trace(out).fragments} == {
        ("n1", 0),
        ("n1", 200),
        ("n2", 0),
    }
    assert refused("convert", "--from", "csv", log, "--out", out).field == "--column"


def test_a_workload_with_lines_that_can_not_be_used(tmp_path: Path) -> None:
    log, out = tmp_path / "log.swf", tmp_path / "t.csv"
    log.write_text(SWF + "odd\n")
    done = call("convert", "--from", "swf", log, "--out", out)
    assert "skipped 1 row: a line that is no job" in done.output
    assert json.loads(out.with_suffix(".json").read_text())["conversion"]["rows_used"] == 4
    assert "log.swf:7: expected 18 fields" in str(refused("convert", "--from", "swf", log, "--out", out, "--strict"))


def test_generate_like_another(trace_file: Path, tmp_path: Path) -> None:
    out, figure = tmp_path / "like.parquet", tmp_path / "like.png"
    done = call("generate", "--like", trace_file, "--out", out, "--seed", "3", "--figure", figure)
    assert done.exit_code == 0, done.exception
    assert "Kolmogorov-Smirnov distance of idle fragments: 0.0" in done.output
    assert "Kolmogorov-Smirnov distance of gaps" in done.output
    assert "█" in done.output
    assert figure.read_bytes().startswith(b"\x89PNG")
    trace = read_trace(out)
    assert (len(trace.nodes), trace.duration_s) == (40, 24 * 3600)
    again = tmp_path / "again.parquet"
    call("generate", "--like", trace_file, "--out", again, "--seed", "3")
    assert again.read_bytes() == out.read_bytes()
    short = call("generate", "--like", trace_file, "--out", out, "--hours", "0.001")
    assert short.exit_code == 0, short.exception
    assert "idle fragments: none is complete in such a short trace" in short.output


def test_generate_a_preset(tmp_path: Path) -> None:
    out = tmp_path / "polaris.csv"
    done = call("generate", "--preset", "polaris", "--out", out, "--hours", "24", "--nodes", "100")
    assert done.exit_code == 0, done.exception
    assert "MalleTrain, section 4.1" in done.output
    trace = read_trace(out)
    assert (len(trace.nodes), trace.duration_s) == (100, 24 * 3600)
    assert "Observation 1" in json.loads((tmp_path / "polaris.json").read_text())["statistics"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--like", "TRACE", "--preset", "mira"], "--preset"),
        (["--preset", "mira", "--idle-fraction", "0.1"], "--idle-fraction"),
        (["--preset", "mira", "--hours", "0"], "--hours"),
        (["--figure", "x.png"], "--figure"),
        (["--like", "TRACE", "--figure", "x.svg"], "--figure"),
    ],
)
def test_generate_names_what_is_wrong(tmp_path: Path, trace_file: Path, arguments: list[str], field: str) -> None:
    given = [str(trace_file) if word == "TRACE" else word for word in arguments]
    assert refused("generate", "--out", tmp_path / "t.csv", *given).field == field
    assert not (tmp_path / "t.csv").exists()
