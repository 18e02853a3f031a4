from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.job_manager.machine.jobs import Dependencies
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.scavenger.idle_trace import Fragment
from malletrain.simulator.journal.conversion import ENDLESS_SAMPLES, idle_trace, journal_input
from malletrain.simulator.journal.decided import decided_samples
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.node_events import node_events
from tests.simulator.journal.recorded import completed, measured, recorded_job, rescaled, started

BEGIN, END = 1000.0, 1100.0
NAMES = ("a", "b", "c")
TIMES = st.lists(st.integers(1, 99), unique=True, max_size=6).map(sorted)


def rows_of(toggles: dict[str, list[int]], snapshots: list[int]) -> list[IdleRow]:
    """Each node joins and leaves by turns; whole sets at some times."""
    rows = [IdleRow(BEGIN, IdleRowKind.START, {})]
    idle: dict[str, float] = {}
    for second in range(1, 100):
        now, changed = BEGIN + second, [name for name in NAMES if second in toggles[name]]
        left = tuple(name for name in changed if name in idle)
        joined = {name: now for name in changed if name not in idle}
        idle = {name: since for name, since in idle.items() if name not in left} | joined
        if second in snapshots:
            rows.append(IdleRow(now, IdleRowKind.ALL, dict(idle)))
        elif changed:
            rows.append(IdleRow(now, IdleRowKind.CHANGE, joined, left))
    return rows


@given(toggles=st.fixed_dictionaries(dict.fromkeys(NAMES, TIMES)), snapshots=TIMES)
def test_fragments_are_the_times_between_joins_and_leaves(toggles: dict[str, list[int]], snapshots: list[int]) -> None:
    trace = idle_trace(rows_of(toggles, snapshots), BEGIN, END)
    expected = {
        Fragment(name, float(first), float(last))
        for name, times in toggles.items()
        for first, last in zip(times[::2], [*times[1::2], 100], strict=False)
    }
    assert set(trace.fragments) == expected
    assert trace.duration_s == 100.0
    assert set(trace.nodes) == {name for name, times in toggles.items() if times}


@given(
    toggles=st.fixed_dictionaries(dict.fromkeys(NAMES, TIMES)),
    cut=st.integers(1, 99),
)
def test_two_parts_have_the_node_seconds_of_the_whole(toggles: dict[str, list[int]], cut: int) -> None:
    rows = rows_of(toggles, [])

    def node_seconds(begin: float, end: float) -> float:
        trace = idle_trace(rows, begin, end)
        return sum(
            min(end - begin, fragment.idle_until_s) - max(0.0, fragment.idle_from_s) for fragment in trace.fragments
        )

    parts = node_seconds(BEGIN, BEGIN + cut) + node_seconds(BEGIN + cut, END)
    assert parts == pytest.approx(node_seconds(BEGIN, END))


def test_the_first_set_keeps_its_ages_and_a_node_that_left_and_came_at_once_has_not_left() -> None:
    rows = [
        IdleRow(BEGIN, IdleRowKind.START, {"a": BEGIN - 500}),
        IdleRow(BEGIN + 10, IdleRowKind.CHANGE, {"b": BEGIN - 50}),
        IdleRow(BEGIN + 20, IdleRowKind.CHANGE, {}, ("a",)),
        IdleRow(BEGIN + 20, IdleRowKind.CHANGE, {"a": BEGIN + 20}),
    ]
    trace = idle_trace(rows, BEGIN, END)
    assert trace.fragments == (Fragment("a", -500.0, 100.0), Fragment("b", 10.0, 100.0))
    assert [(event.time_s, event.left) for event in node_events(trace, 100.0)] == [(0.0, ()), (10.0, ())]


IDLE = (IdleRow(BEGIN, IdleRowKind.START, {"a": BEGIN}),)


def test_jobs_have_what_they_processed_or_their_target_and_their_mean_stalls() -> None:
    grows = [*started(BEGIN, 1, BEGIN + 2), *rescaled(BEGIN + 20, 4, BEGIN + 26), *rescaled(BEGIN + 40, 2, BEGIN + 41)]
    jobs = (
        recorded_job([*grows, *completed(BEGIN + 60, 2)], measured(7777, BEGIN + 60), 1),
        recorded_job(grows, measured(5000, END), 2, target=9000),
        recorded_job(grows, measured(5000, END), 3),
    )
    found = journal_input(Journal(IDLE, jobs), BEGIN, END)
    assert [job.samples for job in found.jobs] == [7777, 9000, ENDLESS_SAMPLES]
    assert {(job.scale_up_s, job.scale_down_s) for job in found.jobs} == {(4.0, 1.0)}
    assert {job.owner for job in found.jobs} == {"ada"}
    assert found.notes == ("1 job was still there and without a target: here they never end.",)


@given(second=st.floats(0.0, 100.0))
def test_of_a_job_that_was_there_before_the_rest_is_replayed(second: float) -> None:
    steps = [*started(BEGIN, 1, BEGIN + 2), *rescaled(BEGIN + 20, 4, BEGIN + 26)]
    job = recorded_job(steps, measured(10_000, END), target=20_000)
    (replayed,) = journal_input(Journal(IDLE, (job,)), BEGIN + second, END + 1).jobs
    whole = decided_samples(job, END)
    assert replayed.samples == pytest.approx(20_000 - 10_000 * decided_samples(job, BEGIN + second) / whole)
    assert replayed.submit_s == 0.0


def test_what_is_not_replayed_is_said() -> None:
    jobs = (
        recorded_job([*started(BEGIN - 10, 1, BEGIN), *completed(BEGIN + 1, 1)], measured(0, BEGIN), 1),
        recorded_job(started(BEGIN, 1, BEGIN + 1), measured(5, END), 2, target=10, curve=()),
        recorded_job(started(END + 10, 1, END + 11), None, 3),
    )
    rows = (*IDLE, IdleRow(BEGIN + 50, IdleRowKind.START, {"a": BEGIN}))
    found = journal_input(Journal(rows, jobs, frozenset(("cpu", "gpu"))), BEGIN, END)
    assert [job.id for job in found.jobs] == ["j000002"], "measured rates are a curve, too"
    text = " ".join(found.notes)
    for part in ("1 job was submitted before", "ended without having trained", "started once", "2 pools"):
        assert part in text


def test_a_job_of_which_no_curve_is_known_is_left_out() -> None:
    job = recorded_job(started(BEGIN, 1, BEGIN + 1), None, curve=())
    found = journal_input(Journal(IDLE, (job,)), BEGIN, END)
    assert found.jobs == ()
    assert "no curve is known" in found.notes[0]


def test_a_job_that_waited_for_others_is_submitted_when_it_did_no_longer() -> None:
    waited = (100.0, JobState.QUEUED, JobReason.DEPENDENCY, 0)
    (first, *later), until = started(400.0, 2, 410.0), completed(900.0, 2)
    recorded = recorded_job([waited, first, *later, *until])
    spec = replace(recorded.job.spec, dependencies=Dependencies(("j000009",)))
    assert replace(recorded, job=replace(recorded.job, spec=spec)).ready_unix == 400.0
    assert recorded_job([first, *later]).ready_unix == 400.0
    waits = recorded_job([waited])
    assert replace(waits, job=replace(waits.job, spec=spec)).ready_unix == 100.0
