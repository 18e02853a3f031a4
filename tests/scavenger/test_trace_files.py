from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace, window
from malletrain.scavenger.trace_files import read_trace, write_trace
from tests.scavenger.traces import traces

HEADER = "node,idle_from_s,idle_until_s\n"
GOOD = HEADER + "b,10,20.5\na,0,15\nb,30,40\n"


def put(folder: Path, text: str, metadata: object = None, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    if metadata is not None:
        (folder / "t.json").write_text(metadata if isinstance(metadata, str) else json.dumps(metadata))
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_fragments_come_by_time_and_nodes_by_appearance(tmp_path: Path, name: str) -> None:
    trace = read_trace(put(tmp_path, GOOD, name=name))
    assert trace.fragments == (Fragment("a", 0, 15), Fragment("b", 10, 20.5), Fragment("b", 30, 40))
    assert trace.nodes == ("b", "a")
    assert (trace.duration_s, trace.earliest_s) == (40, 0)


def test_metadata_fixes_nodes_and_duration(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, GOOD, {"nodes": ["c", "a", "b"], "duration_s": 25, "system": "x"}))
    assert trace.nodes == ("c", "a", "b")
    assert trace.duration_s == 25
    assert len(trace.fragments) == 3


@pytest.mark.parametrize("text", ["\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD + "\n"])
def test_other_programs_ways_of_writing_csv_are_read(tmp_path: Path, text: str) -> None:
    assert read_trace(put(tmp_path, text)) == read_trace(put(tmp_path, GOOD, name="u.csv"))


def test_fragments_that_touch_are_one(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, HEADER + "a,10,20\na,30,40\na,20,30\nb,20,30\n"))
    assert trace.fragments == (Fragment("a", 10, 40), Fragment("b", 20, 30))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "empty"),
        (HEADER, 2, "at least one idle fragment"),
        ("node,from,until\na,0,1\n", 1, "the header node,idle_from_s,idle_until_s, got 'node,from,until'"),
        ("node,idle_from_s\na,0\n", 1, "the header"),
        ("a,0,1\n", 1, "the header"),
        (GOOD + "a,50\n", 5, "3 columns"),
        (GOOD + "a,50,60,70\n", 5, "3 columns"),
        (GOOD + "a,50,6", 5, "a line end"),
        (GOOD + "a,5", 5, "a line end"),
        (GOOD + "a,soon,60\n", 5, "a number of seconds as idle_from_s, got 'soon'"),
        (GOOD + "a,50,\n", 5, "a number of seconds as idle_until_s"),
        (GOOD + "a,nan,60\n", 5, "a finite number of seconds as idle_from_s"),
        (GOOD + "a,50,inf\n", 5, "a finite number of seconds as idle_until_s"),
        (GOOD + "a,-1,60\n", 5, "idle_from_s at least 0"),
        (GOOD + "a,60,60\n", 5, "idle_until_s above idle_from_s (60), got '60'"),
        (GOOD + "a,60,50\n", 5, "idle_until_s above idle_from_s"),
        (GOOD + ",50,60\n", 5, "the name of a node"),
        (GOOD + " a,50,60\n", 5, "the name of a node"),
        (GOOD + "a,14,60\n", 5, "no overlap of the fragments of node a (with line 3)"),
        (HEADER + "a,50,200\na,0,100\n", 3, "no overlap of the fragments of node a (with line 2)"),
        (GOOD + "a,0,15\n", 5, "no overlap"),
        (GOOD + '"a,50,60\n', 5, "CSV"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = put(tmp_path, text)
    with pytest.raises(InvalidInputError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:{line}: expected ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("{", "t.json:1: expected JSON"),
        ("[]", "t.json: expected a JSON object"),
        ({"nodes": ["a"]}, "t.csv:2: expected a node of the metadata's list, got 'b'"),
        ({"nodes": ["a", "b", "a"]}, "t.json: nodes: expected a list of names, each once"),
        ({"nodes": "ab"}, "t.json: nodes: expected"),
        ({"duration_s": 0}, "t.json: duration_s: expected seconds, above 0, got 0"),
        ({"duration_s": "1"}, "t.json: duration_s: expected"),
        ({"earliest_s": 5}, "t.json: earliest_s: expected seconds, at most 0, got 5"),
    ],
)
def test_errors_in_metadata_name_the_field(tmp_path: Path, metadata: object, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_trace(put(tmp_path, GOOD, metadata))
    assert said in str(caught.value)


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "".join(f"n{i},{i},{i + 9}\n" for i in range(9999)), name="t.csv.gz")
    whole = path.read_bytes()
    for length in (len(whole) // 2, len(whole) - 4, 5):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInputError, match=r"t\.csv\.gz:\d+: expected a complete gzip file"):
            read_trace(path)
    path.write_bytes(GOOD.encode())
    with pytest.raises(InvalidInputError, match="a complete gzip file"):
        read_trace(path)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"a name that ends in \.csv, \.csv\.gz or \.parquet"):
        read_trace(tmp_path / "t.txt")
    with pytest.raises(InvalidInputError, match=r"missing\.csv: expected a readable trace"):
        read_trace(tmp_path / "missing.csv")
    binary = tmp_path / "t.csv"
    binary.write_bytes(HEADER.encode() + b"\xff\xfe,1,2\n")
    with pytest.raises(InvalidInputError, match=r"t\.csv:2: expected text in UTF-8"):
        read_trace(binary)


@given(trace=traces())
def test_what_is_written_is_read_again(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("written")
    for name in ("t.csv", "u.csv.gz"):
        write_trace(trace, folder / name)
        assert read_trace(folder / name) == trace


@given(trace=traces(), start_s=st.integers(0, 80), duration_s=st.integers(1, 80), cut=st.booleans())
def test_a_window_shows_the_same_nodes_idle_at_the_same_time(
    trace: Trace, start_s: int, duration_s: int, cut: bool
) -> None:
    piece = window(trace, start_s, duration_s, cut_end=cut)
    assert (piece.nodes, piece.duration_s) == (trace.nodes, duration_s)
    for second in range(duration_s):
        assert idle_at(piece, second) == {
            (node, begin - start_s, min(end - start_s, duration_s) if cut else end - start_s)
            for node, begin, end in idle_at(trace, start_s + second)
        }
    assert all(fragment.idle_from_s >= piece.earliest_s for fragment in piece.fragments)


def idle_at(trace: Trace, second: float) -> set[tuple[str, float, float]]:
    return {
        (entry.node, entry.idle_from_s, entry.idle_until_s)
        for entry in trace.fragments
        if entry.idle_from_s <= second < entry.idle_until_s
    }


def test_a_window_may_keep_some_nodes_only(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, GOOD, {"nodes": ["c", "a", "b"]}))
    assert window(trace, 5, 30, 2) == Trace((Fragment("a", -5, 10),), ("c", "a"), 30, -5)
    assert window(trace, 5, 30, ["b", "c"]).nodes == ("c", "b")
    for nodes in (0, 4, ["a", "d"]):
        with pytest.raises(InvalidInputError, match="nodes: expected"):
            window(trace, 5, 30, nodes)
    with pytest.raises(InvalidInputError, match="duration_s: expected above 0, got 0"):
        window(trace, 5, 0)


def test_the_week_of_summit_is_read(summit: Trace) -> None:
    assert len(summit.fragments) == 223_363
    assert len(summit.nodes) == 4734
    assert (summit.duration_s, summit.earliest_s) == (604_800, 0)
    idle_s = sum(fragment.length_s for fragment in summit.fragments)
    assert idle_s / (len(summit.nodes) * summit.duration_s) == pytest.approx(0.0835, abs=0.0001)
