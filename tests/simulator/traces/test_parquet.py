from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace, window
from malletrain.scavenger.trace_files import HEADER, read_trace, write_parquet_rows, write_trace
from tests.scavenger.traces import traces


@given(trace=traces(), start_s=st.integers(0, 9), origin=st.sampled_from([None, "2021-02-10T20:21:15"]))
def test_every_format_gives_back_what_was_written(
    trace: Trace, start_s: int, origin: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dated = Trace(trace.fragments, trace.nodes, trace.duration_s, trace.earliest_s, origin)
    piece = window(dated, start_s, trace.duration_s)
    folder = tmp_path_factory.mktemp("written")
    for name in ("t.csv", "u.csv.gz", "v.parquet"):
        if piece.fragments:
            write_trace(piece, folder / name)
            assert read_trace(folder / name) == piece
            before = (folder / name).read_bytes()
            write_trace(piece, folder / name)
            assert (folder / name).read_bytes() == before
    if origin:
        assert piece.origin == f"2021-02-10T20:21:{15 + start_s}"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", 0.0, 5.0), ("b", 9.0, 9.0)], ": row 2: expected idle_until_s above idle_from_s (9.0), got '9.0'"),
        ([("a", 0.0, 5.0), ("a", 4.0, 9.0)], ": row 2: expected no overlap of the fragments of node a (with row 1)"),
        ([("a", -1.0, 5.0)], ": row 1: expected idle_from_s at least 0"),
        ([("a", float("nan"), 5.0)], ": row 1: expected a finite number"),
        ([("", 0.0, 5.0)], ": row 1: expected the name of a node"),
        ([], ": expected at least one idle fragment"),
    ],
)
def test_errors_name_file_and_row(tmp_path: Path, rows: list[tuple[str, float, float]], said: str) -> None:
    path = tmp_path / "t.parquet"
    nodes, begins, ends = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    write_parquet_rows(path, HEADER, nodes, begins, ends)
    with pytest.raises(InvalidInputError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}{said}")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("node,idle_from_s,idle_until_s\n")
    with pytest.raises(InvalidInputError, match=r"t\.parquet: expected a Parquet file"):
        read_trace(path)
    write_parquet_rows(path, ("node", "from", "until"), ["a"], [0.0], [1.0])
    with pytest.raises(InvalidInputError, match="the columns node,idle_from_s,idle_until_s, got 'node,from,until'"):
        read_trace(path)
    with pytest.raises(InvalidInputError, match=r"missing\.parquet: expected a readable trace"):
        read_trace(tmp_path / "missing.parquet")


def test_metadata_is_heeded(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet_rows(path, HEADER, ["b"], [0.0], [1.0])
    metadata: dict[str, Any] = {"nodes": ["a", "b"], "duration_s": 10, "origin": "2021-02-10T20:21:15"}
    (tmp_path / "t.json").write_text(json.dumps(metadata))
    assert read_trace(path) == Trace((Fragment("b", 0, 1),), ("a", "b"), 10, 0.0, "2021-02-10T20:21:15")
    (tmp_path / "t.json").write_text(json.dumps({**metadata, "origin": "a Tuesday"}))
    with pytest.raises(InvalidInputError, match=r"t\.json: origin: expected a time such as"):
        read_trace(path)
    (tmp_path / "t.json").write_text(json.dumps({**metadata, "nodes": ["a"]}))
    with pytest.raises(InvalidInputError, match=r"t\.parquet: row 1: expected a node of the metadata's list, got 'b'"):
        read_trace(path)
