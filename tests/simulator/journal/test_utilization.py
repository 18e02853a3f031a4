"""U of the past by minute: from the journal, from what the Allocator has recorded, and of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.utilization.best_rates import BestRates
from malletrain.allocator.utilization.definition import MinuteUse, minute_use, utilization_of
from malletrain.allocator.utilization.meter import UseMeter
from malletrain.allocator.utilization.present import JobPresent, PresentUses
from malletrain.model.job_state import JobState
from malletrain.model.job_terms import JobTerms
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.simulator.journal.conversion import journal_input, what_if
from malletrain.simulator.journal.record import Journal, MeasuredJob, RecordedJob
from malletrain.simulator.journal.utilization import by_minute, minutes_by_records, recorded_minutes, replayed_minutes
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.options import ReplayOptions
from tests.simulator.journal.recorded import completed, measured, recorded_job, rescaled, started
from tests.simulator.replay.builders import Case, cases

BEGIN, END = 1200.0, 4800.0
LINEAR = tuple(ScalingPoint(nodes, 10.0 * nodes) for nodes in range(1, 9))
NODES = {f"n{number}": BEGIN for number in range(4)}


IdleEvent = tuple[float, dict[str, float], tuple[str, ...]]
"""When, nodes that join, nodes that leave."""


def rows(*changes: IdleEvent) -> tuple[IdleRow, ...]:
    return (
        IdleRow(BEGIN, IdleRowKind.START, NODES),
        *(IdleRow(time, IdleRowKind.CHANGE, joined, left) for time, joined, left in changes),
    )


def counted(samples: int, until: float = END) -> MeasuredJob:
    """What Monitor has counted of a job whose rates were as its curve says."""
    return replace(measured(samples, until), points=LINEAR)


def alone(samples: int, stalls: tuple[MeasuredRescale, ...] = ()) -> Journal:
    """A job on one of four nodes from minute 1 on, and on all four from minute 30 on."""
    steps = [*started(BEGIN + 60, 1, BEGIN + 60), *rescaled(BEGIN + 1800, 4, BEGIN + 1800)]
    job = recorded_job(steps, replace(counted(samples), rescales=stalls), curve=LINEAR)
    return Journal(rows(), (job,))


FULL = 29 * 60 * 10 + 30 * 60 * 40
"""Samples that its curve gives."""


def test_minutes_have_the_jobs_of_the_minute() -> None:
    found = list(minutes_by_records(alone(FULL), BEGIN, END))
    assert [minute.start for minute in found] == [BEGIN + 60.0 * place for place in range(60)]
    assert [minute.efficiency for minute in found] == pytest.approx([None, *[0.25] * 29, *[1.0] * 30])
    assert {minute.bound for minute in found[1:]} == {1.0}
    assert sum(minute.trained for minute in found) == pytest.approx(FULL)
    used = utilization_of(found)
    assert used is not None
    assert used.efficiency == pytest.approx(FULL / (59 * 60 * 40))


def test_what_monitor_counted_counts_and_never_more_than_the_curve_gives() -> None:
    for samples, share in ((FULL // 2, 0.5), (0, 0.0), (3 * FULL, 1.0)):
        found = list(minutes_by_records(alone(samples), BEGIN, END))
        assert sum(minute.trained for minute in found) == pytest.approx(share * FULL, rel=1e-4)
        assert all(minute.trained <= minute.free for minute in found)


def test_a_stall_takes_from_its_minute() -> None:
    stall = MeasuredRescale(1, 4, 30.0, BEGIN + 1830.0, 1)
    found = list(minutes_by_records(alone(FULL, (stall,)), BEGIN, END))
    assert [minute.efficiency for minute in found[29:32]] == pytest.approx([0.25, 0.5, 1.0])


def test_a_node_that_leaves_is_not_trained_on_and_a_job_that_stops_not_counted() -> None:
    steps = [*started(BEGIN, 4, BEGIN), *completed(BEGIN + 600, 4)]
    job = recorded_job(steps, counted(600 * 40, BEGIN + 600), curve=LINEAR)
    leaves = rows((BEGIN + 300.0, {}, ("n3",)), (BEGIN + 330.0, {"n3": BEGIN + 330.0}, ()))
    found = list(minutes_by_records(Journal(leaves, (job,)), BEGIN, BEGIN + 900))
    # While n3 is away for half of minute 5, the job trains on three.
    assert found[5].nodes == 3.5
    assert (found[5].trained, found[5].static) == pytest.approx((30 * 30 + 30 * 40, 60 * 35))
    assert [minute.efficiency for minute in found[10:]] == [None] * 5


def test_a_job_that_nobody_measured_has_trained_nothing() -> None:
    job = recorded_job(started(BEGIN, 4, BEGIN), None, curve=LINEAR)
    found = list(minutes_by_records(Journal(rows(), (job,)), BEGIN, END))
    assert {minute.efficiency for minute in found} == {0.0}


def test_what_the_allocator_has_recorded_is_what_counts() -> None:
    recorded = tuple(MinuteUse(BEGIN + 60.0 * place, 4.0, 1.0, 2.0, 4.0) for place in range(-5, 90))
    journal = replace(alone(FULL), utilization=recorded)
    assert recorded_minutes(journal, BEGIN, END) == list(recorded[5:65])
    assert recorded_minutes(alone(FULL), BEGIN, END) == list(minutes_by_records(alone(FULL), BEGIN, END))
    assert journal.end_unix == BEGIN + 60.0 * 90
    found = what_if(journal, BEGIN, END, ReplayOptions(duration_s=END - BEGIN))
    assert (found.really.efficiency, found.really.bound) == (0.25, 0.5)


@settings(deadline=None, max_examples=20, phases=(Phase.explicit, Phase.generate))
@given(
    changes=st.lists(st.tuples(st.floats(1.0, 400.0), st.integers(0, 4), st.booleans()), max_size=15),
    leaving=st.lists(st.tuples(st.floats(0.0, 3600.0), st.sampled_from(sorted(NODES))), max_size=8),
)
def test_looks_every_second_and_the_journal_give_the_same(
    changes: list[tuple[float, int, bool]], leaving: list[tuple[float, str]]
) -> None:
    """As the Allocator records it while it happens, and as it is worked out later from what was stored."""
    time, steps = BEGIN + 5.0, started(BEGIN + 5.0, 1, BEGIN + 5.0)
    for pause, nodes, confirmed in changes:
        if time + pause < END - 10:
            time += pause
            steps += rescaled(time, nodes or 1, time + 1.0 if confirmed else time)
    events, idle = list[IdleEvent](), set(NODES)
    for at, name in sorted(leaving):
        joined = {name: BEGIN + at} if name not in idle else {}
        events.append((BEGIN + at, joined, () if joined else (name,)))
        idle ^= {name}
    job = recorded_job(steps, counted(10**9), curve=LINEAR)
    journal = Journal(rows(*events), (job,))
    later = list(minutes_by_records(journal, BEGIN, END))
    at_once = looked_at(job, events)
    assert len(at_once) >= 58
    for minute in at_once:
        other = later[int((minute.start - BEGIN) // 60)]
        assert other.start == minute.start
        # Each change is seen up to a second late, on at most four nodes of 10 samples/s.
        late_s = 1.0 + sum(minute.start - 1 <= event.unix_seconds < minute.start + 60 for event in job.events)
        late_s += sum(minute.start - 1 <= time < minute.start + 60 for time, _, _ in events)
        assert minute.nodes == pytest.approx(other.nodes, abs=late_s / 60)
        assert minute.trained == pytest.approx(other.trained, abs=40 * late_s)
        assert minute.free == pytest.approx(other.free, abs=40 * late_s)


def looked_at(job: RecordedJob, events: Sequence[IdleEvent]) -> list[MinuteUse]:
    """What looks every second find of a journal, with all that is measured."""
    meter, uses, best, found = UseMeter(), PresentUses(), BestRates(), list[MinuteUse]()
    for second in range(int(BEGIN), int(END) + 1):
        idle = set(NODES)
        for time, joined, left in events:
            if time <= second:
                idle = (idle - set(left)) | set(joined)
        known = [event for event in job.events if event.unix_seconds <= second]
        running = [event for event in known if event.to_state is JobState.RUNNING]
        trains_on = frozenset(known[-1].nodes) & frozenset(running[-1].nodes) if running else frozenset()
        present = JobPresent(job.job.id, JobTerms(1, 8), LINEAR, False, trains_on)
        meter.note_use(float(second), uses.of(float(second), idle, 1, [present] if known else []))
        for minute in meter.due(1e12 if second == END else second):
            meter.close(minute)
            found.append(minute_use(minute.start, minute.steps, best))
    return found


@settings(deadline=None, max_examples=80)
@given(case=cases(), begin=st.floats(0.0, 60.0))
def test_u_of_a_replay_is_between_nothing_and_its_bound_in_every_minute(case: Case, begin: float) -> None:
    result = case.run_replay()
    end = begin + case.options.duration_s
    minutes = list(replayed_minutes(result, case.jobs, begin, end))
    assert all(begin <= minute.start and minute.start + 60 <= end for minute in minutes)
    for minute in minutes:
        assert 0.0 <= minute.trained <= minute.free
        if minute.efficiency is not None and minute.bound is not None:
            assert 0.0 <= minute.efficiency <= minute.bound


def test_a_replay_of_the_past_has_u_by_minute() -> None:
    journal = alone(FULL)
    found = journal_input(journal, BEGIN, END)
    options = ReplayOptions(duration_s=END - BEGIN)
    scenario = Scenario.of(found.trace, END - BEGIN)
    result = run_replay(scenario.events, scenario.nodes, found.jobs, options)
    minutes = list(replayed_minutes(result, found.jobs, BEGIN, END))
    assert [minute.start for minute in minutes] == [BEGIN + 60.0 * place for place in range(60)]
    assert minutes[0].efficiency is None
    assert all(0 <= minute.trained <= minute.free for minute in minutes)
    assert sum(minute.trained for minute in minutes) == pytest.approx(sum(job.samples for job in result.jobs))
    evaluation = by_minute(evaluate(scenario, found.jobs, options), found.jobs, BEGIN, END)
    used = utilization_of(minutes)
    assert used is not None
    assert (evaluation.metrics.utilization_efficiency, evaluation.metrics.zero_cost_bound) == (
        used.efficiency,
        used.bound,
    )
    assert evaluation.metrics.work_in_words(END - BEGIN) == ""


def test_a_replay_of_the_past_says_when_work_had_run_out() -> None:
    found = journal_input(alone(FULL), BEGIN, END)
    jobs = [replace(job, samples=600.0) for job in found.jobs]
    scenario, options = Scenario.of(found.trace, END - BEGIN), ReplayOptions(duration_s=END - BEGIN)
    metrics = by_minute(evaluate(scenario, jobs, options), jobs, BEGIN, END).metrics
    assert metrics.work_ended_hours is not None
    words = metrics.work_in_words(END - BEGIN)
    assert words.startswith("No work left from hour ")
    assert words.endswith("; U is of the minutes with jobs.")


def test_a_past_without_a_whole_minute_keeps_its_u() -> None:
    found = journal_input(alone(FULL), BEGIN, END)
    scenario, options = Scenario.of(found.trace, END - BEGIN), ReplayOptions(duration_s=END - BEGIN)
    evaluation = evaluate(scenario, found.jobs, options)
    assert evaluation.metrics.utilization_efficiency > 0
    assert by_minute(evaluation, found.jobs, BEGIN + 10.0, BEGIN + 50.0) is evaluation
