from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.control_loop import make_trace
from benchmarks.control_loop_sweep import read_runs, series
from benchmarks.looping.breakdown import LogLine, logged, parts_of
from benchmarks.looping.goals import missed_goals
from benchmarks.looping.measuring import Command, NodeEvent, TimedEvent, latencies, summary


def test_events_are_matched_with_the_commands_that_follow() -> None:
    commands = [
        Command.of(line)
        for line in (
            "1.0 start j000001 a b",
            "5.02 release j000001 b",
            "5.03 set j000001 a",
            "9.1 set j000002 c",
            "9.3 set j000001 a b",
        )
    ]
    events = [NodeEvent(5.0, "b", False), NodeEvent(6.0, "x", False), NodeEvent(9.0, "b", True)]
    found = latencies(events, commands)
    assert [round(seconds, 2) for seconds in found.releases] == [0.02]
    assert found.commands == found.growths
    assert [round(seconds, 2) for seconds in found.growths] == [0.3]
    assert (found.unreleased, found.idle) == (0, 0)


def test_a_join_is_not_matched_with_the_command_of_another_plan() -> None:
    commands = [Command.of(line) for line in ("1.0 start j000001 a", "2.0 set j000001 a c", "9.0 set j000001 a c b")]
    found = latencies([NodeEvent(1.5, "b", True), NodeEvent(1.6, "c", True)], commands)
    assert [round(seconds, 2) for seconds in found.commands] == [7.5, 0.4]
    assert found.growths == found.commands


def test_a_plan_begins_with_the_shrink_that_its_growth_waits_for() -> None:
    lines = ("1.0 start j000001 a b", "1.0 start j000002 c", "5.1 set j000001 a", "5.3 set j000002 c b d")
    found = latencies([NodeEvent(5.0, "d", True)], [Command.of(line) for line in lines])
    assert [round(seconds, 2) for seconds in (*found.commands, *found.growths)] == [0.1, 0.3]


def test_a_stop_releases_the_nodes_of_its_job() -> None:
    lines = ["1.0 start j000001 a", "1.0 start j000002 b", "5.01 stop j000001", "4.0 stop j000002"]
    commands = sorted((Command.of(line) for line in lines), key=lambda command: command.time)
    found = latencies([NodeEvent(5.0, "a", False)], commands)
    assert (found.releases, found.unreleased) == ((pytest.approx(0.01),), 0)
    assert latencies([NodeEvent(5.0, "b", False)], commands).releases == (), "it was stopped before"


def test_what_no_command_follows_is_counted() -> None:
    commands = [Command.of("1.0 start j000001 a b")]
    found = latencies([NodeEvent(5.0, "b", False), NodeEvent(9.0, "c", True)], commands)
    assert (found.releases, found.growths, found.unreleased, found.idle) == ((), (), 1, 1)


def test_a_release_is_divided_by_what_the_services_have_logged() -> None:
    lines = [
        LogLine(5.002, "scavenger", {"event": "idle nodes changed", "joined": [], "left": ["b"]}),
        LogLine(5.004, "monitor", {"event": "stall", "ms": 3.0, "cpu_ms": 1.0, "step": "Task-1: work"}),
        LogLine(5.006, "job_manager", {"event": "job state changed", "reason": "preempted: a, b left"}),
        LogLine(7.0, "job_manager", {"event": "job state changed", "reason": "trains on 3 nodes"}),
    ]
    known = logged(reversed(lines))
    found = parts_of([TimedEvent("b", 5.0, 5.01), TimedEvent("z", 6.0, 6.1)], known, known.released, "job_manager")
    assert [found["parts"][part]["median_ms"] for part in ("scavenger", "job_manager", "stand_in")] == [2.0, 4.0, 4.0]
    (slowest,) = found["slowest"]
    assert (slowest["node"], slowest["ms"]) == ("b", 10.0)
    assert slowest["stalls"] == ["4.0 ms: monitor, 3.0 ms (1.0 of CPU time), Task-1: work"]


def test_a_join_is_divided_at_the_plan_that_names_its_node() -> None:
    plan = {"event": "plan made", "applied": True, "trigger": "nodes joined: a, b; jobs arrived: j000001"}
    known = logged(
        [
            LogLine(9.0, "scavenger", {"event": "idle nodes changed", "joined": ["b"], "left": []}),
            LogLine(9.09, "allocator", plan),
        ]
    )
    found = parts_of([TimedEvent("b", 9.0, 9.08)], known, known.planned, "allocator")
    # The stand-in may note the command before the plan is logged.
    assert [found["parts"][part]["most_ms"] for part in ("scavenger", "allocator", "stand_in")] == [0.0, 80.0, 0.0]


def test_summary_is_in_milliseconds() -> None:
    assert summary([]) == {"count": 0}
    assert summary([0.001, 0.002, 0.003]) == {"count": 3, "median_ms": 2.0, "p99_ms": 3.0, "most_ms": 3.0}


def figures(**changes: Any) -> dict[str, Any]:
    return {
        "jobs": 100,
        "nodes": 1000,
        "events_per_second": 1.0,
        "kills": False,
        "leave_to_release": {"count": 120, "p99_ms": 25.0},
        "join_to_command": {"count": 120, "p99_ms": 100.0},
        "plans": {"applied": 98, "refused": 2},
        "cores": {"job_manager": 0.1, "profiler": 0.05, "monitor": 0.15, "allocator": 2.0},
        **changes,
    }


def test_goals_are_missed_above_their_limit_and_without_a_figure() -> None:
    assert missed_goals(figures()) == []
    slow = figures(leave_to_release={"count": 120, "p99_ms": 25.1}, join_to_command={"count": 0})
    assert missed_goals(slow) == [
        "leave to release, 99th percentile in ms: expected at most 25, it is 25.1",
        "join to command, 99th percentile in ms: expected at most 100, nothing was measured",
    ]
    assert "refused plans" in missed_goals(figures(plans={"applied": 97, "refused": 3}))[0]
    assert "Monitor" in missed_goals(figures(cores={"job_manager": 0.2, "profiler": 0.05, "monitor": 0.06}))[0]


def test_goals_are_for_the_sizes_they_are_set_for() -> None:
    slow = {"leave_to_release": {"count": 120, "p99_ms": 101.0}}
    assert missed_goals(figures(nodes=200, **slow)) == []
    assert missed_goals(figures(events_per_second=20.0, **slow)) == []
    assert missed_goals(figures(kills=True, **slow)) == []
    assert len(missed_goals(figures(jobs=1000, nodes=10_000, **slow))) == 1


def test_a_sweep_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert read_runs(path) == []
    first, second = figures(), figures(nodes=10_000)
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n{json.dumps(first)[:20]}")
    assert read_runs(path) == [first, second]
    path.write_text(f"no run\n{json.dumps(first)}\n")
    with pytest.raises(ValueError, match="line 1: expected a run as JSON"):
        read_runs(path)


def test_a_plot_has_a_line_for_each_number_of_nodes() -> None:
    runs = [figures(jobs=jobs, nodes=nodes) for nodes in (1000, 100) for jobs in (100, 10)]
    found = series([*runs, figures(events_per_second=20.0)], lambda run: float(run["jobs"] + run["nodes"]), 1.0)
    assert found == {"100 nodes": ([10, 100], [110.0, 200.0]), "1,000 nodes": ([10, 100], [1010.0, 1100.0])}


def test_every_other_event_of_the_trace_is_a_leave() -> None:
    trace = make_trace(10, first_s=5.0, seconds=8.0, per_second=2.0)
    leaves = sorted(entry.idle_until_s for entry in trace.fragments if entry.idle_until_s < trace.duration_s)
    joins = sorted(entry.idle_from_s for entry in trace.fragments if entry.idle_from_s > 0)
    assert leaves == [5.0 + number for number in range(8)]
    assert joins == [5.5 + number for number in range(8)]
