"""Listings in all their forms."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from malletrain.cli.operate.nodes import NODE_COLUMNS, node_row, quarantined_row
from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.listing import ListingRow, ListingView, Output, print_listing
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2, scavenger_pb2

COLUMNS = (
    Column("job"),
    Column("samples", right=True),
    Column("owner", only_filled=True),
    Column("more", only_wide=True),
)
ROWS = [
    ListingRow(("j1", ListingCell("1,024", 1024), ListingCell("", "ada"), "x"), lambda: {"id": "j1"}),
    ListingRow(("j2", ListingCell("~9", 9.5), ListingCell("", "bob"), "=1+1"), lambda: {"id": "j2"}),
    ListingRow(("j10", ListingCell("-", ""), ListingCell("", ""), ""), lambda: {"id": "j10"}),
]


def printed(capsys: pytest.CaptureFixture[str], view: ListingView, rows: list[ListingRow] = ROWS) -> str:
    print_listing(COLUMNS, rows, view, nothing="no jobs")
    return capsys.readouterr().out


def test_a_table_leaves_out_what_nobody_fills_and_what_is_wide(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ListingView()) == "job\tsamples\nj1\t1,024\nj2\t~9\nj10\t-\n"
    assert printed(capsys, ListingView(Output.WIDE, headers=False)).splitlines()[1] == "j2\t~9\t=1+1"


def test_csv_has_all_columns_values_and_no_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(csv.DictReader(io.StringIO(printed(capsys, ListingView(Output.CSV)))))
    assert found[0] == {"job": "j1", "samples": "1024", "owner": "ada", "more": "x"}
    assert found[1]["more"] == "'=1+1"
    assert printed(capsys, ListingView(Output.CSV, headers=False)).startswith("j1,1024,ada,x\n")


def test_names_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ListingView(Output.NAME)) == "j1\nj2\nj10\n"
    assert json.loads(printed(capsys, ListingView(Output.JSON, limit=1))) == [{"id": "j1"}]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("samples", ["j2", "j1", "j10"]),
        ("-samples", ["j10", "j1", "j2"]),
        ("Owner", ["j1", "j2", "j10"]),
        ("-job", ["j2", "j10", "j1"]),
    ],
)
def test_rows_are_sorted_by_values_not_by_texts(
    capsys: pytest.CaptureFixture[str], sort: str, expected: list[str]
) -> None:
    assert printed(capsys, ListingView(Output.NAME, sort=sort)).split() == expected
    assert printed(capsys, ListingView(Output.NAME, sort=sort, limit=2)).split() == expected[:2]


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidInputError, match=r"--sort: expected one of job, samples, owner, more"):
        print_listing(COLUMNS, ROWS, ListingView(sort="size"), nothing="no jobs")


@pytest.mark.parametrize(
    ("output", "expected"), [(Output.TABLE, ""), (Output.CSV, "job,samples,owner,more\n"), (Output.JSON, "[]\n")]
)
def test_where_nothing_is_listed_that_is_said(
    capsys: pytest.CaptureFixture[str], output: Output, expected: str
) -> None:
    print_listing(COLUMNS, [], ListingView(output), nothing="no jobs")
    said = capsys.readouterr()
    assert said.out == expected
    assert said.err == ("" if output is Output.JSON else "no jobs\n")


def test_colours_go_to_terminals_that_have_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [replace(ROWS[0], cells=("j\x1b]0;x\x07", ListingCell("5", style="green"), "", ""))]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = printed(capsys, ListingView(), rows)
    assert "\x1b[32m" in shown
    assert "\x1b]0;" not in shown, "what a job is called commands no terminal"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(capsys, ListingView(), rows)


@pytest.mark.parametrize("column", [column.name for column in NODE_COLUMNS])
def test_nodes_that_are_quarantined_are_sorted_with_the_others(capsys: pytest.CaptureFixture[str], column: str) -> None:
    node = scavenger_pb2.QuarantinedNode(name="n2")
    idle = resources_pb2.Node(name="n1")
    rows = [node_row(idle, "j000001", 0.0, None), quarantined_row(node)]
    print_listing(NODE_COLUMNS, rows, ListingView(Output.JSON, sort=column), nothing="no idle nodes")
    assert sorted(entry["name"] for entry in json.loads(capsys.readouterr().out)) == ["n1", "n2"]
