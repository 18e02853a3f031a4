from __future__ import annotations

import pytest

from malletrain.runtime.messages import unix_seconds
from malletrain.supervisor.loop.event_loop import RELEASE_HOSTS, SET_HOSTS, STOP, CommandReports
from malletrain.supervisor.workers.slot import Slot
from tests.support.clocks import ManualClock

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Followed:
    """Reports, with a clock that goes on by a second at each look."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        self.reports = CommandReports(self.clock.time)

    def look(self, *workers: tuple[str, int], confirmed: int = 0) -> None:
        self.clock.advance(1.0)
        self.reports.follow([(Slot(host, rank), rank + 1) for host, rank in workers], confirmed)

    def steps(self, index: int = -1) -> list[tuple[str, bool, float]]:
        return [(step.host, step.started, unix_seconds(step.time)) for step in self.reports.finished[index].steps]


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_hosts_are_noted_as_their_workers_start(followed: Followed) -> None:
    followed.reports.begin(SET_HOSTS, TRACEPARENT, {"a": 1, "b": 2}, 1)
    followed.look(("a", 0), ("b", 0))
    followed.look(("a", 0), ("b", 0), ("b", 1))
    assert not followed.reports.finished
    followed.look(("a", 0), ("b", 0), ("b", 1), confirmed=1)
    (report,) = followed.reports.finished
    assert report.done
    assert report.trace_context.traceparent == TRACEPARENT
    assert (unix_seconds(report.begin_time), unix_seconds(report.end_time)) == (1000.0, 1003.0)
    assert followed.steps() == [("a", True, 1001.0), ("b", True, 1002.0)]


def test_a_worker_that_an_agent_has_not_started_yet_does_not_count(followed: Followed) -> None:
    followed.reports.begin(SET_HOSTS, TRACEPARENT, {"a": 1}, 1)
    followed.reports.follow([(Slot("a", 0), 0)], 1)
    assert followed.steps() == []


def test_a_later_command_ends_the_earlier_one(followed: Followed) -> None:
    followed.reports.begin(SET_HOSTS, TRACEPARENT, {"a": 1}, 1)
    followed.reports.begin(SET_HOSTS, "", {"a": 1}, 2)
    assert [report.done for report in followed.reports.finished] == [False]
    assert not followed.reports.following


def test_a_release_ends_when_it_is_confirmed(followed: Followed) -> None:
    followed.reports.begin(RELEASE_HOSTS, TRACEPARENT, {"b": 0})
    followed.look(("a", 0), ("b", 0))
    followed.look(("a", 0))
    assert followed.reports.following
    followed.reports.note_released(frozenset({"c"}))
    assert followed.reports.following
    followed.reports.note_released(frozenset({"b"}))
    assert followed.steps() == [("b", False, 1002.0)]


def test_at_the_end_a_stop_is_done_and_what_was_commanded_before_is_not(followed: Followed) -> None:
    followed.reports.begin(SET_HOSTS, TRACEPARENT, {"a": 1}, 1)
    followed.reports.begin(STOP, TRACEPARENT, {"a": 0})
    followed.reports.close()
    assert [(report.kind, report.done) for report in followed.reports.finished] == [(SET_HOSTS, False), (STOP, True)]
    assert followed.steps() == [("a", False, 1000.0)]


@pytest.mark.parametrize("text", ["", "nonsense", "x" * 1_000_000, TRACEPARENT[:-1] + "0"])
def test_a_command_without_a_context_is_not_reported(followed: Followed, text: str) -> None:
    followed.reports.begin(SET_HOSTS, text, {"a": 1}, 1)
    assert not followed.reports.following


def test_not_too_many_are_kept(followed: Followed) -> None:
    for sequence in range(1, 1000):
        followed.reports.begin(SET_HOSTS, TRACEPARENT, {f"n{host}": 1 for host in range(1000)}, sequence)
        followed.reports.begin(RELEASE_HOSTS, TRACEPARENT, {"x": 0})
    followed.look(*((f"n{host}", 0) for host in range(1000)), confirmed=1000)
    assert len(followed.reports.finished) == 16
    assert max(len(report.steps) for report in followed.reports.finished) == 256
