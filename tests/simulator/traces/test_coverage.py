"""Which time and which nodes a log is taken to show, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace, write_trace
from malletrain.simulator.traces.convert import Conversion, ConversionOptions, convert_jobs
from malletrain.simulator.traces.describe import describe
from malletrain.simulator.traces.system_nodes import match_names

HEADER = "JobID|Start|End|NodeList|State"
HOUR_S = 3600


def log_of(folder: Path, *rows: str, name: str = "jobs.txt") -> Path:
    """Rows of `start end nodes`, with times such as `01T08` in March 2026."""
    lines = [HEADER]
    for number, row in enumerate(rows, 1):
        start, end, nodes = row.split()
        times = [
            word if word == "Unknown" else f"2026-{word if len(word) > 6 else '03-' + word}:00:00"
            for word in (start, end)
        ]
        lines.append(f"{number}|{times[0]}|{times[1]}|{nodes}|{'RUNNING' if end == 'Unknown' else 'COMPLETED'}")
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def converted(path: Path, **options: object) -> Conversion:
    return convert_jobs("sacct", [path], ConversionOptions(**options))  # type: ignore[arg-type]


def hours(trace: Trace) -> set[tuple[str, float, float]]:
    return {(entry.node, entry.idle_from_s / HOUR_S, entry.idle_until_s / HOUR_S) for entry in trace.fragments}


EDGES = ("02-20T00 01T06 n1", "02-28T18 01T03 n2", "01T03 02T00 n2", "01T07 02T05 n1")


def test_only_what_lies_between_the_earliest_end_and_the_latest_start_is_known(tmp_path: Path) -> None:
    found = converted(log_of(tmp_path, *EDGES))
    assert (found.trace.origin, found.trace.duration_s) == ("2026-03-01T03:00:00", 4 * HOUR_S)
    assert hours(found.trace) == {("n1", 3, 4)}
    assert describe(found.trace).idle_ratio == 1 / 8
    assert found.notes[0].startswith(
        "window: 2026-03-01T03:00:00 to 2026-03-01T07:00:00 (4.0 h), from the earliest end"
    )
    assert "2026-02-20T00:00:00 to 2026-03-02T05:00:00" in found.notes[0]
    assert json.loads(json.dumps(found.metadata))["window"]["chosen"] == "from the earliest end to the latest start"


def test_a_window_that_the_user_names(tmp_path: Path) -> None:
    found = converted(log_of(tmp_path, *EDGES), window=("2026-03-01T00:00:00", "2026-03-02T00:00:00"))
    assert hours(found.trace) == {("n1", 6, 7)}
    assert describe(found.trace).idle_ratio == pytest.approx(1 / 48)
    assert "only if its query asked for them" in found.notes[0]
    with pytest.raises(InvalidInputError, match=r"--window: expected a part of 2026-02-20T00:00:00 to 2026-03-02T05"):
        converted(log_of(tmp_path, *EDGES), window=("2025-03-01T00:00:00", "2025-03-02T00:00:00"))


def test_a_window_may_be_named_by_days(tmp_path: Path) -> None:
    by_day = converted(log_of(tmp_path, *EDGES), window=("2026-03-01", "2026-03-02"))
    assert (
        by_day.trace == converted(log_of(tmp_path, *EDGES), window=("2026-03-01T00:00:00", "2026-03-02T00:00:00")).trace
    )


def test_odd_outages_are_skipped_and_told(tmp_path: Path) -> None:
    down = tmp_path / "down.txt"
    down.write_text(
        "NodeName|Reason|TimeStart|TimeEnd\nn1|power|fan|2026-03-01T06:00:00|2026-03-01T06:30:00\n"
        "n1|disk|2026-03-01T09:00:00|2026-03-01T08:00:00\nn2|disk|yesterday|Unknown\n|cluster|2026-03-01T00:00:00|Unknown\n"
    )
    found = converted(log_of(tmp_path, *EDGES), down=down)
    assert hours(found.trace) == {("n1", 3.5, 4)}
    assert any(note.startswith("outages: skipped 1 row: a time that can't be read") for note in found.notes)


def test_a_log_of_which_no_time_is_known_is_refused_unless_it_is_small(tmp_path: Path) -> None:
    rows = ["20T08 21T12 n1", "20T09 21T09 n2"]
    with pytest.raises(InvalidInputError, match="--window FROM TO, within 2026-03-20T08:00:00 to 2026-03-21T12:00:00"):
        converted(log_of(tmp_path, *rows))
    found = converted(log_of(tmp_path, "20T08 20T12 n1", "20T08 20T09 n2"))
    assert hours(found.trace) == {("n2", 1, 4)}
    assert "as if the log had all jobs" in found.notes[0]


def test_jobs_that_run_for_years_by_mistake_move_no_window(tmp_path: Path) -> None:
    usual = [f"{day:02d}T{hour:02d} {day:02d}T{hour + 2:02d} n1" for day in range(1, 29) for hour in range(0, 20, 3)]
    expected = converted(log_of(tmp_path, *usual)).trace
    path = log_of(tmp_path, *usual)
    for start, end in (("2001-01-01T00:00:00", "2001-01-02T00:00:00"), ("2036-01-01T00:00:00", "2036-01-02T00:00:00")):
        path.write_text(f"{path.read_text()}900|{start}|{end}|n1|COMPLETED\n")
    found = converted(path).trace
    assert (found.origin, found.duration_s) == (expected.origin, expected.duration_s)


def test_a_time_without_any_start_or_end_is_told(tmp_path: Path) -> None:
    found = converted(log_of(tmp_path, "01T00 01T02 n1", "01T03 20T00 n1", "20T00 20T04 n1", "20T05 20T06 n1"))
    assert "No job began or ended from 2026-03-01T03:00:00 to 2026-03-20T00:00:00" in found.notes[0]


LATE = [f"{day:02d}T00 {day:02d}T20 n1" for day in range(1, 29)] + ["20T00 20T12 n2", "27T00 27T12 n2"]


def test_a_node_that_comes_late_counts_from_its_first_job_on(tmp_path: Path) -> None:
    found = converted(log_of(tmp_path, *LATE))
    begin_s = (18 * 24 + 4) * HOUR_S
    assert found.trace.present_s == {"n2": (begin_s, found.trace.duration_s)}
    idle = {entry for entry in hours(found.trace) if entry[0] == "n2"}
    assert min(begin for _, begin, _ in idle) == begin_s / HOUR_S + 12
    note = next(note for note in found.notes if "left out until" in note)
    assert "1 node has no job" in note
    assert "n2 none before 2026-03-20T00:00:00" in note
    assert "436.0 node-hours" in note
    idle_s = sum(entry.length_s for entry in found.trace.fragments)
    assert found.trace.node_s == found.trace.duration_s * 2 - begin_s
    assert describe(found.trace).idle_ratio == idle_s / found.trace.node_s


def test_presence_is_written_read_and_cut(tmp_path: Path) -> None:
    trace = converted(log_of(tmp_path, *LATE)).trace
    write_trace(trace, tmp_path / "t.csv")
    assert read_trace(tmp_path / "t.csv") == trace
    begin_s = trace.present_s["n2"][0]
    assert window(trace, begin_s + 1, 3600).present_s == {}
    assert window(trace, begin_s - 60, 3600).present_s == {"n2": (60, 3600)}
    assert window(trace, 0, 3600, 1).present_s == {}
    assert window(trace, 0, 3600).node_s == 3600


@pytest.mark.parametrize(
    "present", [[], {"n9": [0, 1]}, {"n1": [0]}, {"n1": [5, 1]}, {"n1": [-1, 1]}, {"n1": [0, True]}, {"n1": [0, "x"]}]
)
def test_presence_that_can_not_be(tmp_path: Path, present: object) -> None:
    (tmp_path / "t.csv").write_text("node,idle_from_s,idle_until_s\nn1,0,5\n")
    (tmp_path / "t.json").write_text(json.dumps({"nodes": ["n1"], "duration_s": 9, "present_s": present}))
    with pytest.raises(InvalidInputError, match=r"t\.json: present_s"):
        read_trace(tmp_path / "t.csv")


def test_a_list_says_who_was_there(tmp_path: Path) -> None:
    path, nodes = log_of(tmp_path, *LATE), tmp_path / "nodes"
    nodes.write_text("n[1-3]\n")
    assert converted(path, nodes=nodes).trace.present_s == {}
    nodes.write_text("node,from,until\nn1,,\nn2,2026-03-11T20:00:00,\nn3,,2026-03-05T20:00:00\n")
    trace = converted(path, nodes=nodes).trace
    assert trace.present_s == {"n2": (240 * HOUR_S, trace.duration_s), "n3": (0, 96 * HOUR_S)}
    assert ("n2", 240, 436) in hours(trace)
    assert ("n3", 0, 96) in hours(trace)


def test_a_node_without_jobs_to_the_end_is_told(tmp_path: Path) -> None:
    rows = [f"{day:02d}T00 {day:02d}T20 n1" for day in range(1, 29)]
    found = converted(log_of(tmp_path, *rows, "01T00 09T00 n2"))
    assert any("n2 none after 2026-03-09T00:00:00): counted to the end" in note for note in found.notes)


def test_a_boot_counts_only_for_a_node_without_a_job_before_it(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text(
        "NodeName=n1 State=IDLE BootTime=2026-07-24T16:41:28\nNodeName=n2 Arch=x86_64\n"
        "   State=IDLE\n   BootTime=2026-07-24T16:41:28\nNodeName=n3 BootTime=2026-03-01T10:00:00\n"
    )
    found = converted(log_of(tmp_path, "01T08 01T12 n1", "01T08 01T10 n2"), nodes=nodes)
    assert hours(found.trace) == {("n2", 2, 4), ("n3", 2, 4)}
    assert any("no job before the last boot: not idle before it, which leaves out 2.0" in note for note in found.notes)


def test_only_some_nodes(tmp_path: Path) -> None:
    found = converted(log_of(tmp_path, *EDGES, "01T02 01T08 gpu1,n1"), only_nodes="n[1-2]")
    assert found.trace.nodes == ("n1", "n2")
    assert "nodes of the log that --only-nodes leaves out: 1" in found.notes
    with pytest.raises(InvalidInputError, match="--only-nodes: expected nodes of which"):
        converted(log_of(tmp_path, *EDGES), only_nodes="x1")


def test_jobs_on_nodes_that_the_list_lacks_are_skipped_and_counted(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n[1-2]\n")
    found = converted(log_of(tmp_path, *EDGES, "01T02 01T08 gpu1,n1"), nodes=nodes)
    assert found.trace.nodes == ("n1", "n2")
    assert any("skipped 1 row, 6.0 node-hours: nodes that" in note and "'gpu1'" in note for note in found.notes)
    with pytest.raises(InvalidInputError, match=r"jobs\.txt:6: expected nodes of .*nodes \(--only-nodes chooses"):
        converted(log_of(tmp_path, *EDGES, "01T02 01T08 gpu1,n1"), nodes=nodes, strict=True)
    with pytest.raises(InvalidInputError, match=r"jobs\.txt:6: expected at most 1\.00% of a log to be skipped"):
        converted(log_of(tmp_path, *EDGES, "01T02 01T08 gpu1,n1", "01T02 01T08 gpu2"), nodes=nodes)


def test_names_with_and_without_domains() -> None:
    assert match_names(["n1.site.example", "n2"], ["n1", "n2", "n3"]) == {"n1.site.example": "n1", "n2": "n2"}
    assert match_names(["n1"], ["n1.a.example", "n2.a.example"]) == {"n1": "n1.a.example"}
    # Two systems: which is meant is not known.
    assert match_names(["n1"], ["n1.a.example", "n1.b.example"]) == {}
    assert match_names(["n1.a", "n1.b"], ["n1"]) == {}
    assert match_names(["n1", "n1.a"], ["n1"]) == {"n1": "n1", "n1.a": "n1"}
    assert match_names(["n1.a"], ["n1.b"]) == {}


def test_a_log_may_have_a_node_with_its_domain_and_without_it(tmp_path: Path) -> None:
    rows = ("01T00 01T02 n1", "01T03 01T04 n1.site.example", "01T05 01T06 n1", "01T00 01T09 n2.site.example")
    assert converted(log_of(tmp_path, *rows)).trace.nodes == ("n1", "n2.site.example")


RUNAWAY = [f"{day:02d}T08 {day:02d}T20 n[1-2]" for day in range(1, 6)]


def test_a_runaway_job_ends_when_later_jobs_use_its_nodes(tmp_path: Path) -> None:
    found = converted(log_of(tmp_path, "01-05T08 Unknown n1", *RUNAWAY))
    assert hours(found.trace) == {(node, hour, hour + 12) for node in ("n1", "n2") for hour in (0, 24, 48, 72)}
    note = next(note for note in found.notes if "runaway" in note)
    assert "the oldest began 2026-01-05T08:00:00" in note
    assert "jobs.txt:2): 1, taken as ended" in note
    assert found.metadata["runs_without_end"]["taken_as_ended"] == 1  # type: ignore[index]


def test_a_job_that_still_runs_goes_on(tmp_path: Path) -> None:
    found = converted(log_of(tmp_path, *RUNAWAY, "03T21 Unknown n3", "01T00 01T21 n3"))
    assert not [entry for entry in hours(found.trace) if entry[0] == "n3" and entry[2] > 49]
    assert "jobs without an end, which go on to the end of the window: 1" in found.notes


def test_on_shared_nodes_a_later_job_shows_no_end(tmp_path: Path) -> None:
    shared = [f"{day:02d}T{hour:02d} {day:02d}T{hour + 4:02d} n1" for day in range(1, 6) for hour in range(0, 18, 2)]
    shared.append("01T00 03T00 n2")
    found = converted(log_of(tmp_path, *shared, "05T01 Unknown n1"))
    assert found.metadata["runs_without_end"] == {
        "going_on": 1, "taken_as_ended": 0, "taken_as_ended_node_hours": 0.0,
    }  # fmt: skip
    # Longer than any job that ended, and followed: it was as long as the longest.
    found = converted(log_of(tmp_path, *shared, "02T01 Unknown n1"))
    assert found.metadata["runs_without_end"] == {
        "going_on": 0, "taken_as_ended": 1, "taken_as_ended_node_hours": 48.0,
    }  # fmt: skip


def test_a_dump_of_a_later_month_ends_what_the_earlier_one_did_not_know(tmp_path: Path) -> None:
    first = log_of(tmp_path, "01T00 Unknown n1", "01T00 01T05 n2", "01T06 01T07 n2")
    second = log_of(tmp_path, "01T00 01T04 n1", name="later.txt")
    found = convert_jobs("sacct", [first, second])
    assert "rows without an end of jobs that another row ends: 1" in found.notes
    assert ("n1", 0, 2) in hours(found.trace)
