"""The idle trace that a schedule leaves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.batch.engine import simulate
from malletrain.simulator.batch.idle import Window, idle_trace, idle_trace_of
from malletrain.simulator.batch.policies import policy_named
from malletrain.simulator.batch.schedule import Schedule, node_names
from tests.simulator.batch.test_policies import CASE
from tests.simulator.batch.workloads import swf_line, swf_text, workload


def easy() -> Schedule:
    return simulate(CASE, policy_named("easy"))


def periods(trace: Trace) -> list[tuple[str, float, float]]:
    return [(entry.node, entry.idle_from_s, entry.idle_until_s) for entry in trace.fragments]


def test_until_the_last_submission_by_hand() -> None:
    trace = idle_trace(easy())
    assert trace == Trace(
        (Fragment("n0003", 0.0, 2.0), Fragment("n0004", 0.0, 4.0)), ("n0001", "n0002", "n0003", "n0004"), 4.0
    )


def test_until_the_last_end_by_hand() -> None:
    trace = idle_trace(easy(), window=Window.ALL)
    assert periods(trace) == [
        ("n0003", 0.0, 2.0),
        ("n0004", 0.0, 4.0),
        ("n0004", 8.0, 10.0),
        ("n0002", 15.0, 23.0),
        ("n0004", 15.0, 23.0),
        ("n0003", 22.0, 23.0),
    ]
    assert trace.duration_s == 23.0


def test_short_fragments_may_be_left_out() -> None:
    trace = idle_trace(easy(), window=Window.ALL, min_idle_s=3.0)
    assert periods(trace) == [("n0004", 0.0, 4.0), ("n0002", 15.0, 23.0), ("n0004", 15.0, 23.0)]


def test_second_0_is_the_first_submission() -> None:
    schedule = simulate(workload(1, (100.0, 1, 5.0, 5.0), (110.0, 1, 5.0, 5.0)), policy_named("easy"))
    assert periods(idle_trace(schedule)) == [("n0001", 5.0, 10.0)]


def test_the_calendar_comes_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "site.swf"
    path.write_text(swf_text([swf_line(1, 90, 5), swf_line(2, 100, 5)], MaxNodes=1, UnixStartTime=1612137600))
    assert idle_trace_of(path).origin == "2021-02-01T00:01:30+00:00"


def test_one_second_of_submissions_has_no_window() -> None:
    schedule = simulate(workload(2, (3.0, 1, 5.0, 5.0)), policy_named("easy"))
    with pytest.raises(InvalidInputError, match="window: expected all, as all jobs were submitted in the same second"):
        idle_trace(schedule)
    assert periods(idle_trace(schedule, window=Window.ALL)) == [("n0002", 0.0, 5.0)]


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_minimum_that_is_no_length_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInputError, match="min_idle_s: expected seconds, at least 0"):
        idle_trace(easy(), min_idle_s=seconds)


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "site.swf"
    lines = [
        swf_line(job.number, int(job.submit_s), int(job.run_s), job.nodes * 4, requested_time=int(job.estimate_s))
        for job in CASE.jobs
    ]
    path.write_text(swf_text(lines, MaxNodes=4, MaxProcs=16))
    assert idle_trace_of(path) == idle_trace(easy())
    assert idle_trace_of(path, policy="fcfs", window=Window.ALL) == idle_trace(
        simulate(CASE, policy_named("fcfs")), window=Window.ALL
    )


def test_names_sort_like_numbers() -> None:
    names = node_names(12345)
    assert (names[0], names[-1]) == ("n00001", "n12345")
    assert list(names) == sorted(names)
