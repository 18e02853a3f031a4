"""The time before the dashboard's start, from records: the same as if it had been heard."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.model.node_use import NodeUse
from malletrain.observer.accounting import at
from malletrain.observer.facts import HeldFact, IdleFact, NodeFact, StallFact
from malletrain.observer.history import USES, History, NodePeriod
from malletrain.observer.job_facts import CurveFact, JobFact, PointFact, ProgressFact
from malletrain.observer.past import past_of, with_past
from malletrain.observer.updates import curves_changed, jobs_changed, nodes_changed, progress_changed, stalls_measured

START = 1_000_000_020.0
NAMES = ("n1", "n2", "n3", "n4")
UNITS = (*NAMES, "n1#0", "n1#1", "n2#0")
CURVE = CurveFact("j1", (PointFact(1, 10.0), PointFact(4, 40.0)))

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "start", "confirm", "rescale", "stop", "wait"]),
        st.sampled_from(["j1", "j2"]),
        st.sets(st.sampled_from(UNITS)),
        st.floats(1.0, 200.0),
    ),
    max_size=15,
)
Step = tuple[str, str, set[str], float]
STATES = {"start": "STARTING", "confirm": "RUNNING", "rescale": "RESCALING", "stop": "STOPPING", "wait": "WAITING"}


def heard_and_recorded(steps: Sequence[Step]) -> tuple[History, list[HeldFact], list[IdleFact]]:
    """What was heard from the begin on, and what services record of the same."""
    history = jobs_changed(nodes_changed(History(), [], [], START, snapshot=True), [], START, snapshot=True)
    jobs = {name: JobFact(name, fleet_gpus=2) for name in ("j1", "j2")}
    idle: dict[str, float] = {}
    now, rows, changes = START, list[HeldFact](), [IdleFact(START, whole=True)]
    for kind, job_id, units, seconds in steps:
        now += seconds
        nodes = {unit for unit in units if "#" not in unit}
        if kind in ("join", "leave"):
            joined, left = (nodes - idle.keys(), set()) if kind == "join" else (set[str](), nodes & idle.keys())
            history = nodes_changed(history, [NodeFact(name, now) for name in joined], left, now)
            idle = {name: since for name, since in idle.items() if name not in left} | dict.fromkeys(joined, now)
            changes.append(IdleFact(now, frozenset(joined), frozenset(left)))
            continue
        before, other = jobs[job_id], jobs["j2" if job_id == "j1" else "j1"]
        taken = other.commanded | other.confirmed
        commanded = before.commanded if kind in ("confirm", "stop") else frozenset(units) - taken
        if kind == "wait":
            commanded = frozenset()
        confirmed = {"confirm": commanded, "rescale": before.confirmed, "stop": before.confirmed}.get(kind, frozenset())
        job = JobFact(job_id, state=STATES[kind], fleet_gpus=2, commanded=commanded, confirmed=confirmed)
        jobs[job_id] = job
        history = jobs_changed(history, [job], now)
        rows.append(HeldFact(now, job_id, commanded, job.state, kind == "confirm"))
    return at(history, now + 30.0), rows, changes


def begun_late(heard: History) -> History:
    """What a dashboard knows that has been started only now."""
    found = nodes_changed(History(), (heard.nodes or {}).values(), [], heard.now, snapshot=True)
    return jobs_changed(found, heard.jobs.values(), heard.now, snapshot=True)


@given(STEPS)
def test_what_is_recorded_gives_what_was_heard(steps: list[Step]) -> None:
    heard, rows, changes = heard_and_recorded(steps)
    late = begun_late(heard)
    found = with_past(late, past_of(late, rows, changes))
    assert [minute.start for minute in found.minutes] == [minute.start for minute in heard.minutes]
    for one, other in zip(found.minutes, heard.minutes, strict=True):
        assert one.node_seconds == pytest.approx(other.node_seconds, abs=1e-6)
    assert sorted(map(told, found.fragments)) == sorted(
        told(item) for item in heard.fragments if item.end is None or item.end > item.start
    )
    for node, place in found.open.items():
        assert (found.fragments[place].node, found.fragments[place].end) == (node, None)


def told(item: NodePeriod) -> tuple[str, tuple[str, ...], float, float]:
    return item.node, item.jobs, item.start, item.end or float("inf")


def trained_an_hour() -> tuple[History, list[HeldFact], list[IdleFact]]:
    """A job that has trained for an hour on 2 of 4 nodes, as it is known at a start of the dashboard."""
    held, now = frozenset({"n1", "n2"}), START + 3600.0
    rows = [
        HeldFact(START, "j1", frozenset(), "QUEUED"),
        HeldFact(START, "j1", held, "STARTING"),
        HeldFact(START + 60.0, "j1", held, "RUNNING", confirmed=True),
    ]
    job = JobFact("j1", state="RUNNING", admitted=True, max_nodes=4, commanded=held, confirmed=held)
    history = nodes_changed(History(), [NodeFact(name, START) for name in NAMES], [], now, snapshot=True)
    history = jobs_changed(history, [job], now, snapshot=True)
    history = progress_changed(history, [ProgressFact("j1", samples=35_400, rate=10.0, nodes=2)], now)
    return curves_changed(history, [CURVE]), rows, [IdleFact(START, frozenset(NAMES), whole=True)]


def test_the_last_hour_is_known_after_a_start() -> None:
    history, rows, changes = trained_an_hour()
    history = stalls_measured(history, [StallFact("j1", 1, 2, 30.0, START + 600.0)])
    found = with_past(history, past_of(history, rows, changes))
    total = dict(zip(USES, map(sum, zip(*(m.node_seconds for m in found.minutes), strict=True)), strict=True))
    assert total[NodeUse.BOOTING] == pytest.approx(2 * 60.0)
    assert total[NodeUse.STALLED] == pytest.approx(2 * 30.0)
    assert total[NodeUse.TRAINING] == pytest.approx(2 * 3510.0)
    assert total[NodeUse.UNASSIGNED] == pytest.approx(2 * 3600.0)


def test_without_records_of_idle_nodes_there_are_no_minutes_before() -> None:
    history, rows, _ = trained_an_hour()
    assert all(minute.start >= history.now for minute in past_of(history, rows).minutes)
