"""What `malletrain top` draws and which keys it takes, without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from malletrain.cli.top.command import parse_keys
from malletrain.cli.top.screen import Event, SortBy, View, events_between, rows_of, screen, service_events, view_after
from malletrain.observer.facts import NodeFact, PlanFact
from malletrain.observer.history import History
from malletrain.observer.job_facts import CurveFact, JobFact, PointFact, ProgressFact
from malletrain.observer.updates import jobs_changed, nodes_changed, plan_known
from tests.support.builders import job_fact

START = 1_000_000_000.0
CURVE = (PointFact(1, 10.0), PointFact(4, 40.0))


def job(number: int, **changes: object) -> JobFact:
    named = {"name": f"name-{9 - number}", "owner": "ada", "samples": 100 * number}
    return job_fact(f"j{number:06d}", f"n{number}", **named | changes)


def history(*jobs: JobFact) -> History:
    nodes = {name: NodeFact(name, START) for name in ("n1", "n2", "n3")}
    progress = {fact.id: ProgressFact(fact.id, fact.samples, rate=float(fact.samples)) for fact in jobs}
    curves = {fact.id: CurveFact(fact.id, CURVE) for fact in jobs}
    known = {fact.id: fact for fact in jobs}
    return History(now=START, nodes=nodes, jobs=known, heard_jobs=True, progress=progress, curves=curves)


def drawn(found: History, view: View | None = None, *, height: int = 24, width: int = 120, **more: object) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    troubles, events = more.get("troubles", []), more.get("events", [])
    console.print(screen(found, view or View(), troubles, events, height))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("sort", "reverse", "order"),
    [
        (SortBy.JOB, False, "1234"),
        (SortBy.JOB, True, "3214"),
        (SortBy.NAME, False, "3214"),
        (SortBy.RATE, False, "3214"),
        (SortBy.PROGRESS, False, "3214"),
        (SortBy.LEFT, False, "3214"),
        (SortBy.LEFT, True, "1234"),
        (SortBy.STATE, False, "2134"),
    ],
)
def test_jobs_are_sorted_and_those_that_have_ended_come_last(sort: SortBy, reverse: bool, order: str) -> None:
    known = history(job(1), job(2, state="RESCALING"), job(3), job(4, state="COMPLETED", ended=START))
    assert "".join(row.fact.id[-1] for row in rows_of(known, sort, reverse=reverse)) == order


def test_what_is_not_known_is_sorted_last() -> None:
    waits = job(1, state="WAITING", confirmed=frozenset(), commanded=frozenset())
    assert [row.fact.id[-1] for row in rows_of(history(waits, job(2)), SortBy.LEFT, reverse=False)] == ["2", "1"]


def test_keys_choose_open_sort_and_end() -> None:
    listed = ["j1", "j2", "j3"]
    view = View()
    for key, expected in [
        ("down", View(selected="j2")),
        ("end", View(selected="j3")),
        ("down", View(selected="j3")),
        ("up", View(selected="j2")),
        ("enter", View(selected="j2", opened=True)),
        ("up", View(selected="j1", opened=True)),
        ("q", View(selected="j1")),
        ("r", View(SortBy.RATE, selected="j1")),
        ("r", View(SortBy.RATE, reverse=True, selected="j1")),
        ("p", View(SortBy.PROGRESS, selected="j1")),
        ("x", View(SortBy.PROGRESS, selected="j1")),
        ("q", View(SortBy.PROGRESS, selected="j1", over=True)),
    ]:
        view = view_after(view, key, listed)
        assert view == expected, key
    assert view_after(View(selected="gone"), "enter", []) == View(), "there is nothing to open"


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"rq", ["r", "q"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F", ["page up", "page down", "home", "end"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\r\x7f", ["enter", "backspace"]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\x1bxq", ["q"]),
        (b"\x1b[", []),
        (b"\xff", ["ÿ"]),
    ],
)
def test_keys_of_a_terminal(data: bytes, keys: list[str]) -> None:
    assert parse_keys(data) == keys


def test_the_screen_fits_and_keeps_the_chosen_job_in_it() -> None:
    many = history(*(job(number) for number in range(1, 60)))
    events = [Event(START, f"event {number}") for number in range(30)]
    for height in (3, 5, 8, 12, 24, 50):
        lines = drawn(many, View(selected="j000040"), height=height, troubles=["no Monitor"], events=events)
        assert len(lines) <= max(height, 6)
        if height >= 8:
            assert any("j000040" in line for line in lines)
            assert "no Monitor" in lines[2]
        if height >= 24:
            assert any("event 29" in line for line in lines)


def test_a_job_is_shown_alone() -> None:
    text = "\n".join(drawn(history(job(1), job(2)), View(selected="j000002", opened=True)))
    for part in ("j000002  name-7", "200 / 1,000 (20%)", "time left", "trains on  n2", "1: 10.0", "Esc back"):
        assert part in text
    assert "j000001" not in text


def test_names_of_jobs_do_not_steer_the_terminal() -> None:
    evil = job(1, name="\x1b]0;title\x07\x1b[2J", reason="\x9b2J")
    for view in (View(), View(selected="j000001", opened=True)):
        text = "\n".join(drawn(history(evil), view, events=[Event(START, "j000001 \x1b[2J")]))
        assert not any(letter in text for letter in ("\x1b]", "\x1b[2J", "\x07", "\x9b"))


def test_what_has_happened_between_two_histories() -> None:
    before = plan_known(history(job(1), job(2)), PlanFact(1))
    after = nodes_changed(before, [NodeFact("n4", START)], ["n1"], START)
    changed = [job(2, state="WAITING", reason="no nodes"), job(1, confirmed=frozenset({"n1", "n2"})), job(3)]
    after = plan_known(
        jobs_changed(after, changed, START), PlanFact(2, trigger="nodes joined", applied=False, refusal="old")
    )
    assert [event.text for event in events_between(before, after, START)] == [
        "n4 joined",
        "n1 left",
        "j000001 trains on 2, 1 before",
        "j000002 RUNNING → WAITING: no nodes",
        "j000003 name-6 is RUNNING",
        "plan 2 was refused (old): nodes joined",
    ]
    assert events_between(History(), after, START) == [], "what is heard first is no event"
    assert events_between(after, after, START) == []


def test_services_that_stop_and_begin_to_answer() -> None:
    assert service_events({}, {"monitor": True, "allocator": None}, START) == []
    assert [event.text for event in service_events({"monitor": True}, {"monitor": False}, START)] == [
        "Monitor does not answer"
    ]
    assert [event.text for event in service_events({"monitor": False}, {"monitor": True}, START)] == [
        "Monitor answers again"
    ]
