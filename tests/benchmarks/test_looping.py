from __future__ import annotations

from benchmarks.control_loop import make_trace
from benchmarks.looping.measuring import Command, NodeEvent, latencies, summary


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
    assert [round(seconds, 2) for seconds in found.commands] == [0.1]
    assert [round(seconds, 2) for seconds in found.growths] == [0.3]
    assert (found.unreleased, found.idle) == (0, 0)


def test_what_no_command_follows_is_counted() -> None:
    commands = [Command.of("1.0 start j000001 a b")]
    found = latencies([NodeEvent(5.0, "b", False), NodeEvent(9.0, "c", True)], commands)
    assert (found.releases, found.growths, found.unreleased, found.idle) == ((), (), 1, 1)


def test_summary_is_in_milliseconds() -> None:
    assert summary([]) == {"count": 0}
    assert summary([0.001, 0.002, 0.003]) == {"count": 3, "median_ms": 2.0, "p99_ms": 3.0, "most_ms": 3.0}


def test_every_other_event_of_the_trace_is_a_leave() -> None:
    trace = make_trace(10, first_s=5.0, seconds=8.0, per_second=2.0)
    leaves = sorted(entry.idle_until_s for entry in trace.fragments if entry.idle_until_s < trace.duration_s)
    joins = sorted(entry.idle_from_s for entry in trace.fragments if entry.idle_from_s > 0)
    assert leaves == [5.0 + number for number in range(8)]
    assert joins == [5.5 + number for number in range(8)]
