"""Rows that can't be used are skipped, counted and told, up to a limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.convert import ConversionOptions, convert_jobs
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.row_counts import RowCounts
from malletrain.simulator.traces.runs import OtherRow, Run, SkippedRow

GOOD = "{n}|2026-01-05T08:00:00|2026-01-05T12:00:00|n1|COMPLETED"
OTHER = "8|2026-01-05T08:00:00|2026-01-05T09:00:00|n2|COMPLETED"
BAD = "9|2026-01-05T08:00:00|soon|n1|COMPLETED"


def log_of(folder: Path, bad: int, good: int) -> Path:
    path = folder / "jobs.txt"
    lines = ["JobID|Start|End|NodeList|State", *[GOOD.format(n=n) for n in range(good)], OTHER, *[BAD] * bad]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(node_s: float) -> Run:
    return Run(("n1",), 0, node_s, Line("x", 1, ""))


def skipped(node_s: float | None, reason: str = "odd") -> SkippedRow:
    return SkippedRow(reason, InvalidInputError("x:2", "something else", "this"), node_s)


def test_one_odd_row_ends_nothing_and_is_told(tmp_path: Path) -> None:
    found = convert_jobs("sacct", [log_of(tmp_path, bad=1, good=3)])
    assert [entry.node for entry in found.trace.fragments] == ["n2"]
    assert "skipped 1 row: a time that can't be read" in found.notes[1]
    assert "jobs.txt:6: expected a time such as" in found.notes[1]
    metadata = json.loads(json.dumps(found.metadata))
    assert metadata["rows_used"] == 4
    assert metadata["skipped_row_share"] == 0.2
    assert metadata["skipped"][0]["rows"] == 1
    assert metadata["skipped"][0]["node_hours"] is None


def test_strict_stops_at_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"jobs\.txt:6: expected a time such as"):
        convert_jobs("sacct", [log_of(tmp_path, bad=1, good=3)], ConversionOptions(strict=True))


def test_more_than_a_per_cent_is_an_error_unless_allowed(tmp_path: Path) -> None:
    path = log_of(tmp_path, bad=3, good=196)
    with pytest.raises(
        InvalidInputError, match=r"jobs\.txt:199: expected at most 1\.00% of a log to be skipped, not 3"
    ):
        convert_jobs("sacct", [path])
    assert convert_jobs("sacct", [path], ConversionOptions(max_skipped=0.02)).metadata["rows_used"] == 197


def test_node_hours_count_where_they_are_known() -> None:
    counts = RowCounts()
    list(counts.used_of([run(3600.0)] * 400))
    for _ in range(2):
        counts.skip(skipped(3600.0 * 50))
    assert counts.skipped_row_share < 0.01
    with pytest.raises(InvalidInputError, match=r"not 100\.0 node-hours, 20\.0%"):
        counts.check()


def test_rows_that_are_no_runs_are_counted_and_allowed() -> None:
    counts = RowCounts(strict=True)
    rows = [OtherRow("steps of jobs"), run(1.0), OtherRow("steps of jobs")]
    assert list(counts.used_of(rows)) == [run(1.0)]
    counts.check()
    assert counts.metadata()["rows_without_run"] == {"steps of jobs": 2}


def test_what_a_reader_assumed_is_told() -> None:
    counts = RowCounts()
    list(counts.used_of([run(1.0)._replace(assumed="taken as a short job")] * 2))
    assert counts.sentences() == ["assumed of 2 rows: taken as a short job"]
    assert counts.metadata()["assumed_of_rows"] == {"taken as a short job": 2}


def test_a_log_of_another_kind_is_not_read_to_its_end() -> None:
    taken = 0

    def rows() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield skipped(None)

    with pytest.raises(InvalidInputError, match="x:2: expected at most 1"):
        list(RowCounts().used_of(rows()))  # type: ignore[arg-type]
    assert taken == 10_000
