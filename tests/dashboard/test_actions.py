"""What is offered to whom, in which zone times are written, and what tables say that have no rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.dashboard.pages import views
from malletrain.dashboard.pages.actions import actions_html, job_actions, node_actions
from malletrain.dashboard.pages.markup import Cell, Regions, Row, changes, row_cells
from malletrain.dashboard.pages.selection import shown_in, zone_in_words, zone_named
from malletrain.observer.job_facts import JobFact
from malletrain.observer.troubles import ServiceState, troubles

JOB = JobFact("j000001", name="<b>", owner="ada", state="RUNNING")


@pytest.mark.parametrize(
    ("user", "role", "may"),
    [
        ("ada", "user", True),
        ("eve", "user", False),
        ("ada", "viewer", False),
        ("eve", "operator", True),
        ("eve", "service", True),
        ("ada", "job", False),
    ],
)
def test_a_job_is_cancelled_by_its_owner_or_an_operator(user: str, role: str, may: bool) -> None:
    assert bool(job_actions(user, role, JOB)) == may
    assert job_actions(user, role, replace(JOB, state="COMPLETED")) == ()
    assert job_actions(user, role, None) == ()


def test_nodes_are_drained_and_resumed_by_operators() -> None:
    assert [action.name for action in node_actions("operator", "n1", left_out=False)] == ["drain"]
    assert [action.name for action in node_actions("operator", "n1", left_out=True)] == ["resume"]
    assert node_actions("operator", "", left_out=False) == ()
    for role in ("viewer", "user"):
        assert node_actions(role, "n1", left_out=False) == node_actions(role, "n1", left_out=True) == ()


def test_an_action_is_opened_and_then_confirmed() -> None:
    shown = actions_html(job_actions("ada", "user", JOB))
    assert shown.startswith('<details class="action"><summary>Cancel this job …</summary>')
    assert '<input type="hidden" name="job" value="j000001">' in shown
    assert shown.count('name="token" type="password"') == 1
    assert 'autocomplete="off" required' in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown
    assert actions_html(()) == ""


def test_times_are_written_in_the_zone_of_the_viewer() -> None:
    summer = 1_785_000_000.0
    assert views.date_and_time(summer) == "2026-07-25 17:20:00"
    with shown_in(zone_named("Asia/Tokyo")):
        assert views.date_and_time(summer) == "2026-07-26 02:20:00"
        assert views.time_of_day(summer) == "02:20:00"
        assert zone_in_words(summer) == "JST"
    assert zone_in_words(summer) == "UTC"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "Not/There", "/etc/localtime", "Europe", "x" * 100, "\x00"])
def test_a_zone_that_is_none_is_utc(name: str) -> None:
    assert zone_in_words(0.0) == "UTC"
    with shown_in(zone_named(name)):
        assert zone_in_words(0.0) == "UTC"


def test_an_outage_is_one_line() -> None:
    away = {
        name: ServiceState(False, 1000.0 + place) for place, name in enumerate(("scavenger", "monitor", "profiler"))
    }
    told = "what they tell is shown as of then."
    assert troubles({**away, "allocator": ServiceState(True)}, None, "you") == [
        f"The Scavenger, Monitor and the Profiler do not answer, the first since 00:16:40 UTC: {told}"
    ]
    one = troubles({"monitor": ServiceState(False, 0.0)}, None, "you", lambda _: "noon")
    assert one == ["Monitor does not answer since noon: samples, rates and stalls are shown as of then."]
    assert troubles({"monitor": ServiceState(True, refusal="no")}, None, "you") == ["Monitor refuses you: no"]


def test_a_table_without_rows_says_what_to_do() -> None:
    before = Regions({}, {"jobs": (Row("j1", (Cell("x"),)),)}, {"jobs": "submit <one>"})
    after = Regions({}, {"jobs": ()}, {"jobs": "submit <one>"})
    assert changes(before, after) == [("jobs", '<tr><td colspan="99" class="none">submit &lt;one&gt;</td></tr>')]


def test_states_have_colours_and_cells_an_order() -> None:
    row = Row("j1", (views.state_cell("RUNNING"), Cell("5 min", order=300.0)))
    assert row_cells(row) == (
        '<td><span class="state running" data-state="running">running</span></td><td data-order="300">5 min</td>'
    )
