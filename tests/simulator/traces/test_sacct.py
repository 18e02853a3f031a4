"""What `sacct` prints on real systems: texts with delimiters, clocks that change, states, JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader, time_zone
from malletrain.simulator.traces.convert import Conversion, ConversionOptions, convert_jobs
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import OtherRow, Row, Run, SkippedRow
from malletrain.simulator.traces.slurm_accounting import elapsed_of, read_sacct

HEADER = "JobID|JobName|Start|End|NodeList|State|Comment"


def read(text: str, zone: str | None = None) -> list[Row]:
    lines = [Line("jobs.txt", number, line) for number, line in enumerate(text.split("\n"), 1)]
    return list(read_sacct(lines, CalendarReader(None if zone is None else time_zone(zone))))


def runs(text: str, zone: str | None = None) -> list[tuple[str, str, float]]:
    """Jobs, their nodes and hours; fails where a row is skipped."""
    found = []
    for row in read(text, zone):
        assert isinstance(row, Run), row
        until_s = float("nan") if row.until_s is None else row.until_s
        found.append((row.job, ",".join(row.nodes), (until_s - row.from_s) / 3600))
    return found


def row(job: int, name: str, hours: int = 1, comment: str = "") -> str:
    return f"{job}|{name}|2026-01-05T08:00:00|2026-01-05T{8 + hours:02d}:00:00|n{job}|COMPLETED|{comment}"


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("a|b", ""), ("|", "|"), ("||||", ""), ("a|2026-01-05T08:00:00|b", ""), ("", "x|y|z"), ("a\nb", ""),
        ("a\n\n|b", ""),        ("a", "b\nc"), ("a|b\nc|d", "e|f"), ("a\r", ""), ("caf\ufffd|", ""),
    ],
)  # fmt: skip
def test_texts_may_hold_the_delimiter_and_line_ends(name: str, comment: str) -> None:
    text = "\n".join((HEADER, row(1, "plain"), row(2, name, 2, comment), row(3, "plain", 3, "fine"), ""))
    assert runs(text) == [("1", "n1", 1), ("2", "n2", 2), ("3", "n3", 3)]


@given(st.text("ab|\n :-0", max_size=12), st.text("ab|\n", max_size=8))
def test_no_text_hides_another_job(name: str, comment: str) -> None:
    text = "\n".join((HEADER, row(1, "plain"), row(2, name, 2, comment), row(3, "plain", 3)))
    found = read(text)
    whole = {(entry.job, entry.nodes): entry for entry in found if isinstance(entry, Run)}
    assert {("1", ("n1",)), ("3", ("n3",))} <= whole.keys()
    # It is read rightly, or skipped.
    if ("2", ("n2",)) in whole:
        entry = whole["2", ("n2",)]
        assert entry.until_s is not None
        assert entry.until_s - entry.from_s == 7200
    else:
        assert [entry for entry in found if isinstance(entry, SkippedRow)]


def test_a_row_that_can_be_read_in_two_ways_is_skipped() -> None:
    header = "JobName|Start|End|NodeList|Comment"
    text = "a|2026-01-05T08:00:00|2026-01-05T09:00:00|n1|2026-01-05T08:00:00|2026-01-05T11:00:00|n2|x"
    (found,) = read(f"{header}\n{text}")
    assert isinstance(found, SkippedRow)
    assert found.reason == "a row whose columns can't be told apart"


def test_a_row_without_end_does_not_take_the_next_ones_with_it() -> None:
    found = read("\n".join((HEADER, "7|cut", row(1, "a"), row(2, "b|c"), "8|cut")))
    assert [type(entry) for entry in found] == [SkippedRow, Run, Run, SkippedRow]


def test_joined_lines_have_a_limit() -> None:
    found = read("\n".join((HEADER, "7|cut", *["x"] * 1000, row(1, "a"))))
    assert isinstance(found[-1], Run)
    assert found[-1].job == "1"
    assert sum(isinstance(entry, SkippedRow) for entry in found) == 1


@pytest.mark.parametrize("delimiter", ["|", ";", ",", "\t", "^", "@@", "☃", " "])
@pytest.mark.parametrize("ending", [False, True])
def test_any_delimiter(delimiter: str, ending: bool) -> None:
    rows = [
        ("JobID", "Start", "End", "NodeList", "State"),
        ("1", "2026-01-05T08:00:00", "2026-01-05T09:00:00", "n1", "COMPLETED"),
        ("2", "2026-01-05T08:00:00", "2026-01-05T10:00:00", "n[1,3-4],m2", "CANCELLED by 7"),
        ("3", "2026-01-05T08:00:00", "2026-01-05T11:00:00", "n2", "COMPLETED"),
    ]
    text = "\n".join(delimiter.join(cells) + (delimiter if ending and delimiter != " " else "") for cells in rows)
    assert runs(text) == [("1", "n1", 1), ("2", "n1,n3,n4,m2", 2), ("3", "n2", 3)]


def test_columns_of_fixed_width() -> None:
    text = """\
JobID                     Start                 End        NodeList      State
------------ ------------------- ------------------- --------------- ----------
1            2026-01-05T08:00:00 2026-01-05T09:00:00              n1  COMPLETED
1.batch      2026-01-05T08:00:00 2026-01-05T09:00:00              n1  COMPLETED
2            2026-01-05T08:00:00             Unknown          n[2-3]    RUNNING
3            2026-01-05T08:00:00 2026-01-05T09:00:00 n[100001-20000+  COMPLETED
4                        Unknown             Unknown   None assigned    PENDING
"""
    found = read(text)
    assert [type(entry) for entry in found] == [Run, OtherRow, Run, SkippedRow, OtherRow]
    with pytest.raises(InvalidInputError, match=r"jobs.txt:2: expected a delimiter between columns"):
        read("\n".join(text.split("\n")[::2]))


def test_a_quoted_list_of_nodes() -> None:
    text = 'JobID,Start,End,NodeList\n1,2026-01-05T08:00:00,2026-01-05T09:00:00,"n[1,3]"'
    assert runs(text) == [("1", "n1,n3", 1)]


def test_dumps_with_other_columns_in_one_file() -> None:
    first = f"{HEADER}\n{row(1, 'a')}\n2|cut"
    second = "JobID|NodeList|Start|End\n3|n3|2026-01-05T08:00:00|2026-01-05T10:00:00"
    found = read(f"{first}\n{second}\n{HEADER}\n{row(4, 'b')}")
    assert [(entry.job, entry.nodes) for entry in found if isinstance(entry, Run)] == [
        ("1", ("n1",)), ("3", ("n3",)), ("4", ("n4",)),
    ]  # fmt: skip
    assert len(found) == 4


def test_headers_in_any_case_and_after_comments() -> None:
    assert runs(
        "# sacct -a\n\njobid|start|end|nodelist\n" + row(1, "a").replace("|a|", "|").replace("|COMPLETED|", "")
    ) == [("1", "n1", 1)]


def test_columns_of_a_log_without_header(tmp_path: Path) -> None:
    log = tmp_path / "jobs.txt"
    log.write_text("\n".join((row(1, "x", 1), row(2, "a|b", 2), row(3, "y", 4))))
    header = "jobid,jobname%30,start,end,nodelist,state,comment"
    trace = convert_jobs("sacct", [log], ConversionOptions(header=header)).trace
    assert {(entry.node, entry.idle_from_s / 3600) for entry in trace.fragments} == {("n1", 1), ("n2", 2)}
    with pytest.raises(InvalidInputError, match="--header: expected columns with Start"):
        convert_jobs("sacct", [log], ConversionOptions(header="jobid,end"))
    with pytest.raises(InvalidInputError, match=r"jobs\.txt:1: expected 9 columns, as --header names them"):
        convert_jobs("sacct", [log], ConversionOptions(header=f"{header},a,b"))
    with pytest.raises(InvalidInputError, match=r"jobs\.txt:1: expected a header with Start"):
        convert_jobs("sacct", [log])


STATES = "JobID|Start|End|Elapsed|NodeList|State\n7|2026-01-05T08:00:00|{end}|{elapsed}|n1|{state}"


@pytest.mark.parametrize(
    ("end", "elapsed", "state", "hours"),
    [
        ("2026-01-05T09:00:00", "01:00:00", "CANCELLED by 1000", 1.0),
        ("2026-01-05T09:00:00", "01:00:00", "NODE_FAIL", 1.0),
        ("2026-01-05T09:00:00", "01:00:00", "REQUEUED", 1.0),
        ("2026-01-05T09:00:00", "01:00:00", "", 1.0),
        ("Unknown", "3-00:00:00", "RUNNING", None),
        ("Unknown", "3-00:00:00", "SUSPENDED", None),
        ("Unknown", "", "", None),
        ("Unknown", "01:30:00", "COMPLETED", 1.5),
        ("Unknown", "1-00:00:30", "FAILED", 24 + 30 / 3600),
    ],
)
def test_the_state_says_whether_a_job_without_an_end_goes_on(
    end: str, elapsed: str, state: str, hours: float | None
) -> None:
    (found,) = read(STATES.format(end=end, elapsed=elapsed, state=state))
    assert isinstance(found, Run)
    assert (None if found.until_s is None else (found.until_s - found.from_s) / 3600) == hours


@pytest.mark.parametrize(
    ("end", "elapsed", "state", "reason"),
    [
        ("Unknown", "00:00:00", "PENDING", "jobs that never started"),
        ("2026-01-05T09:00:00", "00:00:00", "PENDING", "jobs that never started"),
        ("2026-01-05T08:00:00", "00:00:00", "CANCELLED", "jobs of no length"),
        ("Unknown", "00:00:00", "COMPLETED", "jobs of no length"),
        ("Unknown", "", "COMPLETED", "a job that has ended without an end"),
        ("2026-01-04T09:00:00", "01:00:00", "COMPLETED", "an end before the start"),
        ("1970-01-01T00:00:00", "01:00:00", "COMPLETED", "an end before the start"),
    ],
)
def test_rows_that_tell_of_no_run(end: str, elapsed: str, state: str, reason: str) -> None:
    (found,) = read(STATES.format(end=end, elapsed=elapsed, state=state))
    assert isinstance(found, SkippedRow | OtherRow)
    assert found.reason == reason


def test_a_start_of_1970_is_told_by_elapsed() -> None:
    text = "JobID|Start|End|Elapsed|NodeList|State\n7|1970-01-01T01:00:00|2026-01-05T09:00:00|{}|n1|COMPLETED"
    (found,) = read(text.format("02:00:00"))
    assert isinstance(found, Run)
    assert (found.until_s or 0) - found.from_s == 7200
    assert "before 1990" in found.assumed
    (found,) = read(text.format(""))
    assert isinstance(found, SkippedRow)


def test_a_running_job_whose_end_is_the_querys_end_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "jobs.txt"
    log.write_text(
        "JobID|Start|End|NodeList|State\n1|2026-01-05T08:00:00|2026-01-05T12:00:00|n1|RUNNING\n"
        "2|2026-01-05T08:00:00|2026-01-05T09:00:00|n2|COMPLETED\n3|2026-01-05T10:00:00|2026-01-05T12:00:00|n2|COMPLETED\n"
    )
    window = ("2026-01-05T08:00:00", "2026-01-05T14:00:00")
    trace = convert_jobs("sacct", [log], ConversionOptions(window=window)).trace
    assert {(entry.node, entry.idle_from_s / 3600) for entry in trace.fragments} == {("n2", 1), ("n2", 4)}


@pytest.mark.parametrize(
    ("raw", "text", "seconds"),
    [
        ("90", "", 90), ("", "00:01:30", 90), ("", "01:30", 90), ("", "2-01:00:00", 176400), ("", "00:00:01.500", 1),
        ("", "100:00:00", 360000), ("", "", None), ("", "INVALID", None), ("-1", "x", None), ("9" * 30, "", None),
    ],
)  # fmt: skip
def test_elapsed(raw: str, text: str, seconds: float | None) -> None:
    assert elapsed_of(raw, text) == seconds


# In Berlin clocks went from 03:00 back to 02:00 on 2026-10-25, and from 02:00 to 03:00 on 2026-03-29.
NIGHT = "JobID|Start|End|Elapsed|NodeList\n22|2026-10-25T{}|2026-10-25T{}|{}|n2"


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("elapsed", ["", "00:20:00"])
def test_a_job_across_the_end_of_summer_time(zone: str | None, elapsed: str) -> None:
    assert runs(NIGHT.format("02:50:00", "02:10:00", elapsed), zone) == [("22", "n2", pytest.approx(1 / 3))]


@pytest.mark.parametrize(
    ("start", "end", "elapsed", "hours"),
    [
        ("01:00:00", "04:00:00", "", 4), ("02:10:00", "02:20:00", "", 1 / 6),
        ("02:10:00", "02:20:00", "01:10:00", 7 / 6),
        ("02:50:00", "03:10:00", "00:20:00", 1 / 3),
        ("02:50:00", "03:10:00", "01:20:00", 4 / 3),
        ("01:50:00", "02:10:00", "01:20:00", 4 / 3),
    ],
)  # fmt: skip
def test_the_zone_and_elapsed_say_which_pass_of_the_hour_is_meant(
    start: str, end: str, elapsed: str, hours: float
) -> None:
    assert runs(NIGHT.format(start, end, elapsed), "Europe/Berlin") == [("22", "n2", pytest.approx(hours))]


def test_a_zone_knows_the_hour_that_does_not_exist() -> None:
    text = "Start|End|NodeList\n2026-03-29T01:00:00|2026-03-29T04:00:00|n1"
    assert runs(text, "Europe/Berlin")[0][2] == 2


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", ""])
def test_zones_that_are_none(zone: str) -> None:
    with pytest.raises(InvalidInputError, match="--zone: expected a time zone"):
        time_zone(zone)


def in_json(version: str) -> dict[str, object]:
    """Four jobs as Slurm of some version prints them: ended, running, pending, never assigned."""
    new = version >= "23.11"

    def job(number: int, state: str, start: int, end: int, nodes: str) -> dict[str, object]:
        return {
            "job_id": number,
            "name": "a|b\n",
            "nodes": nodes,
            "state": {"current": [state] if new else state, "reason": "None"},
            "steps": [{"nodes": {"list": ["n1"]}, "time": {"start": start}}],
            "time": {
                "elapsed": max(0, end - start),
                "start": start,
                "end": {"set": True, "infinite": False, "number": end} if version >= "25.05" else end,
                "limit": {"set": True, "number": 60} if new else 60,
            },
        }

    jobs = [
        job(1, "COMPLETED", 1767600000, 1767603600, "n[1-2]"),
        job(2, "RUNNING", 1767607200, 0, "n1"),
        job(3, "PENDING", 0, 0, "None assigned"),
        job(4, "CANCELLED", 1767600000, 1767600000, ""),
        job(5, "FAILED", 1767603600, 1767610800, "n3"),
    ]
    meta = {"plugin": {"type": "openapi/slurmdbd"}, "Slurm": {"version": {"major": 23}}}
    return {"jobs": jobs, "meta": meta, "errors": []} if new else {"meta": meta, "errors": [], "jobs": jobs}


def converted(path: Path, **options: object) -> Conversion:
    window = ("2026-01-05T08:00:00Z", "2026-01-05T12:00:00Z")
    return convert_jobs("sacct", [path], ConversionOptions(window=window, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["21.08", "23.11", "25.05"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("shape", ["whole", "jobs", "lines", "gzip", "twice"])
def test_json(tmp_path: Path, version: str, indent: int | None, shape: str) -> None:
    whole = in_json(version)
    text = json.dumps(whole, indent=indent)
    if shape == "jobs":
        text = json.dumps(whole["jobs"], indent=indent)
    elif shape == "lines":
        text = "\n".join(json.dumps(job, indent=indent) for job in whole["jobs"])  # type: ignore[attr-defined]
    elif shape == "twice":
        text = f"{text}\n{text}"
    path = tmp_path / "jobs.json"
    path.write_bytes(gzip.compress(text.encode()) if shape == "gzip" else text.encode())
    trace = converted(path).trace
    found = {(entry.node, entry.idle_from_s / 3600, entry.idle_until_s / 3600) for entry in trace.fragments}
    assert found == {("n1", 1, 2), ("n2", 1, 4), ("n3", 0, 1), ("n3", 3, 4)}
    assert trace.origin == "2026-01-05T08:00:00+00:00"


def test_json_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    text = json.dumps(in_json("23.11"), indent=2)
    for broken, place in ((text[:-30], 6), (text.replace('"name"', "name", 1), 1), ("[" * 100_000, 1), ("{", 1)):
        path.write_text(broken)
        with pytest.raises(InvalidInputError, match=rf"jobs\.json: job {place}: expected JSON"):
            converted(path)
    path.write_text('{"jobs": [{"job_id": 1}, 7]}')
    with pytest.raises(InvalidInputError, match=r"jobs\.json: job 1: expected a job with time\.start"):
        converted(path)
    with pytest.raises(InvalidInputError, match=r"jobs\.json: job 1: expected a job with time\.start"):
        converted(path, strict=True)


def test_a_value_of_json_may_not_go_on_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.simulator.traces.json_values.MAX_VALUE_CHARACTERS", 1000)
    path = tmp_path / "jobs.json"
    path.write_text('{"jobs": [{"name": "' + "x" * 3_000_000 + '"}]}')
    with pytest.raises(InvalidInputError, match="no value ends within 1000 characters"):
        converted(path)


def test_an_odd_job_of_json_is_skipped(tmp_path: Path) -> None:
    jobs = in_json("23.11")
    jobs["jobs"].append({"job_id": 9, "nodes": "n[1", "state": None, "time": {"start": 1767600000, "end": 5}})  # type: ignore[attr-defined]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps(jobs))
    assert any("jobs.json: job 6" in note and "skipped 1 row" in note for note in converted(path).notes)
