"""Logs of any shape, by the names of their columns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.column_logs import parse_columns
from malletrain.simulator.traces.convert import Conversion, ConversionOptions, convert_jobs

HOUR_S = 3600
DAY = ("2026-01-05T00:00:00", "2026-01-06T00:00:00")


def converted(folder: Path, text: str, *columns: str, name: str = "log.csv", **options: object) -> Conversion:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    given = ConversionOptions(columns=parse_columns(columns), **options)  # type: ignore[arg-type]
    return convert_jobs("csv", [path], given)


def idle(found: Conversion) -> set[tuple[str, float, float]]:
    return {(entry.node, entry.idle_from_s / HOUR_S, entry.idle_until_s / HOUR_S) for entry in found.trace.fragments}


NAMED = ("start=began", "end=ended", "nodes=hosts")
EXPECTED = {("a1", 0, 8), ("a1", 12, 24), ("a2", 0, 8), ("a2", 9, 24)}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    ("begin", "first_end", "second_end"),
    [
        ("2026-01-05T08:00:00Z", "2026-01-05T12:00:00Z", "2026-01-05 09:00:00+00:00"),
        ("1767600000", "1767614400", "1767603600.0"),
        ("1767600000000", "1767614400000", "1.7676036e12"),
        ("2026-01-05 09:00:00+01:00", "2026/01/05 12:00:00Z", "1767603600"),
    ],
)
def test_times_of_any_form(tmp_path: Path, delimiter: str, begin: str, first_end: str, second_end: str) -> None:
    rows = (("x", "hosts", "began", "ended"), ("", "a1", begin, first_end), ("a, b", "a2", begin, second_end))
    quoted = "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows)
    window = tuple(f"{time}Z" for time in DAY)
    assert idle(converted(tmp_path, quoted, *NAMED, window=window)) == EXPECTED


@pytest.mark.parametrize("length", ["14400", "14400.0", "04:00:00", "0-04:00:00", "0 days 04:00:00", "0 days, 4:00:00"])
def test_a_duration_in_place_of_an_end(tmp_path: Path, length: str) -> None:
    text = f'began,took,hosts\n2026-01-05T08:00:00,"{length}",a1\n2026-01-05T08:00:00,3600,a2\n'
    found = converted(tmp_path, text, "start=began", "duration=took", "nodes=hosts", window=DAY)
    assert idle(found) == EXPECTED


@pytest.mark.parametrize(
    "hosts",
    [
        "a[1-2]",
        "a1,a2",
        "a1 a2",
        "a1;a2",
        "a1+a2",
        "a1/0-7+a2/0-7",
        "['a1', 'a2']",
        '["a1","a2"]',
        "{a1,a2}",
        "[a1 a2]",
        "a1,a1,a2",
    ],
)
def test_nodes_of_any_form(tmp_path: Path, hosts: str) -> None:
    hosts = hosts.replace('"', '""')
    text = f'began,ended,hosts\n2026-01-05T08:00:00,2026-01-05T09:00:00,"{hosts}"\n'
    found = converted(tmp_path, text, *NAMED, window=DAY)
    assert idle(found) == {(name, *hours) for name in ("a1", "a2") for hours in ((0, 8), (9, 24))}


def test_numbers_of_nodes_and_ranges(tmp_path: Path) -> None:
    text = 'began,ended,hosts\n100,200,0-2 5\n300,400,5\n500,600,"3,4"\n'
    assert converted(tmp_path, text, *NAMED).trace.nodes == ("0", "1", "2", "3", "4", "5")


def test_jobs_that_never_ran_and_those_that_still_run(tmp_path: Path) -> None:
    text = """\
id,began,ended,hosts,word
1,2026-01-05T08:00:00,2026-01-05T12:00:00,a1,COMPLETED
2,2026-01-05T08:00:00,2026-01-05T09:00:00,a2,COMPLETED
3,,,a1,CANCELLED
4,NaT,NaT,,CANCELLED
5,0,0,[],PENDING
6,2026-01-05T20:00:00,0,a1,RUNNING
7,2026-01-05T20:00:00,,a2,FAILED
"""
    found = converted(tmp_path, text, *NAMED, "state=word", "job=id", window=DAY)
    assert idle(found) == {("a1", 0, 8), ("a1", 12, 20), ("a2", 0, 8), ("a2", 9, 24)}
    assert found.metadata["rows_without_run"] == {"jobs that never started": 3}
    assert any("log.csv:8: expected an end, as its state says that it has ended" in note for note in found.notes)


def test_amounts_are_placed_on_the_lowest_free_nodes(tmp_path: Path) -> None:
    text = """\
began,ended,count
2026-01-05T00:00:00,2026-01-05T12:00:00,2
2026-01-05T06:00:00,2026-01-05T18:00:00,1
2026-01-05T12:00:00,2026-01-05T18:00:00,1
2026-01-05T20:00:00,2026-01-05T22:00:00,9
"""
    found = converted(tmp_path, text, "start=began", "end=ended", "node_count=count", nodes_count=4, window=DAY)
    assert found.trace.nodes == ("n1", "n2", "n3", "n4")
    assert idle(found) == {
        ("n1", 18, 20), ("n1", 22, 24), ("n2", 12, 20), ("n2", 22, 24), ("n3", 0, 6), ("n3", 18, 20), ("n3", 22, 24),
        ("n4", 0, 20), ("n4", 22, 24),
    }  # fmt: skip
    assert any("assumed of 3 rows: the log does not say which nodes: the lowest" in note for note in found.notes)
    assert any("assumed of 1 row: the log does not say which nodes, and more than all" in note for note in found.notes)


def test_slots_share_nodes(tmp_path: Path) -> None:
    text = """\
began,ended,gpus
2026-01-05T00:00:00,2026-01-05T12:00:00,8
2026-01-05T00:00:00,2026-01-05T18:00:00,3
2026-01-05T01:00:00,2026-01-05T20:00:00,5
2026-01-05T02:00:00,2026-01-05T20:00:00,9
"""
    options = {"nodes_count": 4, "slots_per_node": 8, "window": DAY}
    found = converted(tmp_path, text, "start=began", "end=ended", "slots=gpus", **options)
    # 3 and 5 are on one node; 9 are a whole node and a part of another.
    assert idle(found) == {("n1", 12, 24), ("n2", 20, 24), ("n3", 0, 2), ("n3", 20, 24), ("n4", 0, 2), ("n4", 20, 24)}


def test_seconds_without_a_calendar(tmp_path: Path) -> None:
    text = "began,ended,hosts\n100,3700,a1\n200,1900,a2\n3800,9000,a2\n9100,9200,a1\n"
    found = converted(tmp_path, text, *NAMED)
    assert found.trace.origin is None
    assert found.trace.duration_s == 9100 - 1900
    assert found.notes[0].startswith("window: second 1900 to second 9100 (2.0 h)")


def test_compressed_and_quoted_line_ends(tmp_path: Path) -> None:
    rows = ('2026-01-05T08:00:00,"a\n""b,",2026-01-05T12:00:00,a1', "2026-01-05T08:00:00,,2026-01-05T09:00:00,a2")
    text = "\n".join(("began,x,ended,hosts", *rows))
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(text.encode()))
    found = convert_jobs("csv", [path], ConversionOptions(columns=parse_columns(NAMED), window=DAY))
    assert idle(found) == EXPECTED


def test_a_quote_that_is_never_closed_does_not_take_the_log_with_it(tmp_path: Path) -> None:
    rows = [f"2026-01-05T{hour:02d}:00:00,x,2026-01-05T{hour:02d}:30:00,a1" for hour in range(24)] * 100
    rows[0] = rows[0].replace("x", '"x')
    with pytest.raises(InvalidInputError, match=r"log\.csv:2: expected"):
        converted(tmp_path, "\n".join(("began,x,ended,hosts", *rows)), *NAMED)


def test_rows_that_can_not_be_read_are_skipped(tmp_path: Path) -> None:
    good = ["2026-01-05T08:00:00,2026-01-05T12:00:00,a1"] * 800 + ["2026-01-05T08:00:00,2026-01-05T09:00:00,a2"]
    bad = [
        "soon,2026-01-05T12:00:00,a1", "2026-01-05T08:00:00,2026-01-05T12:00:00", "2026-01-05T08:00:00,never,a1",
        "2026-01-05T08:00:00,2026-01-04T08:00:00,a1", "2026-01-05T08:00:00,2026-01-05T12:00:00,a[1",
    ]  # fmt: skip
    found = converted(tmp_path, "\n".join(("began,ended,hosts", *good, *bad)), *NAMED, window=DAY)
    assert idle(found) == EXPECTED
    skipped = found.metadata["skipped"]
    assert sum(entry["rows"] for entry in skipped) == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["start=a"], "start=NAME, and end=NAME or duration=NAME"),
        (["start=a", "end=b"], "one of nodes=NAME, node_count=NAME and slots=NAME"),
        (["start=a", "end=b", "nodes=c", "slots=d"], "one of nodes=NAME"),
        (["begin=a"], "FIELD=NAME with one of start"),
        (["start"], "FIELD=NAME with one of start"),
        (["start=a", "start=b"], "start once"),
    ],
)
def test_columns_that_can_not_be(columns: list[str], said: str) -> None:
    with pytest.raises(InvalidInputError, match=f"--column: expected {said}"):
        parse_columns(columns)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"log\.csv:1: expected a column began \(--column start=began\)"):
        converted(tmp_path, "a,b,c\n1,2,3\n", *NAMED)
    text = "began,ended,count\n2026-01-05T08:00:00,2026-01-05T12:00:00,1\n"
    with pytest.raises(InvalidInputError, match="--nodes-count: expected the machine's size"):
        converted(tmp_path, text, "start=began", "end=ended", "node_count=count")
    with pytest.raises(InvalidInputError, match="at least one job that held nodes"):
        converted(tmp_path, "began,ended,hosts\n", *NAMED)


def test_json_by_paths_of_keys(tmp_path: Path) -> None:
    def attempt(end: str, *nodes: str) -> dict[str, object]:
        return {
            "began": "2026-01-05 08:00:00",
            "ended": f"2026-01-05 {end}",
            "detail": [{"ip": node} for node in nodes],
        }

    jobs = [
        {"id": 1, "attempts": [attempt("09:00:00", "a2"), attempt("12:00:00", "a1")]},
        {"id": 2, "attempts": []},
        {"id": 3, "attempts": [attempt("08:30:00", "a1", "a2")]},
    ]
    columns = ("start=attempts.began", "end=attempts.ended", "nodes=attempts.detail.ip", "job=id")
    assert idle(converted(tmp_path, json.dumps(jobs), *columns, window=DAY)) == EXPECTED
    flat = [
        {"s": "2026-01-05 08:00:00", "e": f"2026-01-05 {end}", "n": node}
        for end, node in (("12:00:00", "a1"), ("09:00:00", ["a2"]))
    ]
    text = "\n".join(json.dumps(job) for job in flat)
    assert idle(converted(tmp_path, text, "start=s", "end=e", "nodes=n", window=DAY)) == EXPECTED
    with pytest.raises(InvalidInputError, match="at least one job that held nodes"):
        converted(tmp_path, text, "start=x.y", "end=e", "nodes=n", window=DAY)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    hours = [1767600000 * 1000, 1767600000 * 1000]
    table = pyarrow.table(
        {
            "began": pyarrow.array(hours, pyarrow.timestamp("ms", "UTC")),
            "ended": pyarrow.array([hours[0] + 4 * 3600_000, hours[0] + 3600_000], pyarrow.timestamp("ms", "UTC")),
            "hosts": [["a1"], ["a2"]],
            "other": [1, 2],
        }
    )
    path = tmp_path / "log.parquet"
    parquet.write_table(table, path)
    window = tuple(f"{time}Z" for time in DAY)
    found = convert_jobs("csv", [path], ConversionOptions(columns=parse_columns(NAMED), window=window))  # type: ignore[arg-type]
    assert idle(found) == EXPECTED
    path.write_bytes(b"no parquet")
    with pytest.raises(InvalidInputError, match=r"log\.parquet: expected a readable Parquet file"):
        convert_jobs("csv", [path], ConversionOptions(columns=parse_columns(NAMED)))


@pytest.mark.parametrize(
    ("columns", "options", "field"),
    [
        (NAMED, {"nodes_count": 4}, "--nodes-count"),
        (NAMED, {"slots_per_node": 4}, "--slots-per-node"),
        ((*NAMED[:2], "node_count=hosts"), {"nodes_count": 4, "slots_per_node": 8}, "--slots-per-node"),
        ((*NAMED[:2], "node_count=hosts"), {"nodes_count": 4, "nodes": Path("nodes")}, "--nodes"),
        ((*NAMED[:2], "slots=hosts"), {"nodes_count": 4}, "--slots-per-node"),
    ],
)
def test_an_option_without_a_meaning_is_refused(
    tmp_path: Path, columns: tuple[str, ...], options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        converted(tmp_path, "began,ended,hosts\n1767600000,1767603600,2\n", *columns, **options)
    assert refused.value.field == field


def test_a_window_of_a_log_without_a_calendar_is_in_seconds(tmp_path: Path) -> None:
    text = "began,ended,hosts\n5,1000000,n1\n10,900000,n2\n"
    found = converted(tmp_path, text, *NAMED, window=("5", "950000"))
    assert [(entry.node, entry.idle_from_s, entry.idle_until_s) for entry in found.trace.fragments] == [
        ("n2", 0, 5),
        ("n2", 899995, 949995),
    ]
    with pytest.raises(InvalidInputError, match="--window: expected seconds, as the log has no calendar"):
        converted(tmp_path, text, *NAMED, window=("2026-01-05", "2026-01-06"))


def test_times_beyond_every_calendar_are_skipped(tmp_path: Path) -> None:
    text = "began,took,hosts\n2026-01-05T08:00:00,14400,a1\n2026-01-05T08:00:00,3600,a2\n"
    odd = "9990-01-05T01:00:00,99999999999,a2\n2026-01-05T08:00:00,99999999999,a2\n"
    found = converted(tmp_path, text + odd, "start=began", "duration=took", "nodes=hosts", window=DAY, max_skipped=0.9)
    assert idle(found) == EXPECTED


def test_progress_goes_on_from_file_to_file(tmp_path: Path) -> None:
    lines = (f"{1767600000 + 100 * number},{1767600090 + 100 * number},n{number % 3}\n" for number in range(1500))
    text = "began,ended,hosts\n" + "".join(lines)
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path in paths:
        path.write_text(text)
    read: list[float] = []
    convert_jobs("csv", paths, ConversionOptions(columns=parse_columns(NAMED)), read.append)
    assert read == sorted(read)
    assert read[-1] == 2 * len(text)


def test_times_finer_than_a_microsecond_in_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "log.parquet"
    begin = 1767600000 * 10**9
    moments = {
        "began": pyarrow.array([begin + 1, begin + 1], pyarrow.timestamp("ns", "UTC")),
        "ended": pyarrow.array([begin + 14400 * 10**9 + 7, begin + 3600 * 10**9 + 999], pyarrow.timestamp("ns", "UTC")),
    }
    parquet.write_table(pyarrow.table({**moments, "hosts": ["a1", "a2"]}), path)
    window = tuple(f"{time}Z" for time in DAY)
    found = convert_jobs("csv", [path], ConversionOptions(columns=parse_columns(NAMED), window=window))  # type: ignore[arg-type]
    assert idle(found) == EXPECTED
