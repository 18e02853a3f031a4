"""Which step the newest past speaks for: judged in parts, with what the Allocator can't change as advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from malletrain.allocator.auto_tuning.documents import TuningOrder
from malletrain.allocator.auto_tuning.machine import ForwardChoice, TuningQuestion, one_step_from
from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.tuning.next_step import OutOfTimeError, answer_order
from malletrain.simulator.tuning.trials import DayOutcome, TunedSettings, TuningDay, replay_day
from tests.simulator.journal.recorded import recorded_job, started

PART_S = 3600.0
PARTS = 6
SHORT = ForwardChoice(ForwardPolicy.CONSTANT, 15.0)
PRESENT = TunedSettings(ForwardPolicy.CONSTANT, 15.0, 10, 0.05)
NAMES = [f"n{index}" for index in range(8)]


def journal() -> Journal:
    """Two jobs without end on eight nodes; four of them leave and join again every ten minutes."""
    rows = [IdleRow(0.0, IdleRowKind.START, dict.fromkeys(NAMES, 0.0))]
    for turn in range(1, int(PARTS * PART_S / 600)):
        four = tuple(NAMES[:4])
        leaves = IdleRow(600.0 * turn, IdleRowKind.CHANGE, {}, four)
        joins = IdleRow(600.0 * turn + 300, IdleRowKind.CHANGE, dict.fromkeys(four, 600.0 * turn + 300))
        rows += [leaves, joins]
    rows.append(IdleRow(PARTS * PART_S, IdleRowKind.CHANGE, {"late": PARTS * PART_S}))
    jobs = [recorded_job(started(1.0, 2, 15.0), number=number) for number in (1, 2)]
    stalled = [replace(job, job=replace(job.job, spec=replace(job.job.spec, scale_up_seconds=14.0))) for job in jobs]
    return Journal(tuple(rows), tuple(stalled))


def order(candidates: tuple[ForwardChoice, ...], before: ForwardChoice | None = None) -> TuningOrder:
    return TuningOrder(TuningQuestion(SHORT, candidates, before, 2 * PART_S), PART_S, 28, 60.0, 1.0)


def replays(at_most: int = 10**6) -> tuple[list[TuningDay], Callable[[TuningDay, TunedSettings], DayOutcome]]:
    """Replays with the fast engine, until there is no time any more."""
    seen: list[TuningDay] = []

    def replay(day: TuningDay, settings: TunedSettings) -> DayOutcome:
        if len(seen) >= at_most:
            raise OutOfTimeError
        seen.append(day)
        return replay_day(day, settings, ReplayOptions(duration_s=1.0))

    return seen, replay


def test_a_t_fwd_near_the_stall_is_found_too_short() -> None:
    seen, replay = replays()
    found = answer_order(order(tuple(one_step_from(SHORT))), journal(), PRESENT, replay)
    assert found.best is not None
    assert found.best.choice in one_step_from(SHORT)
    assert found.best.mean > 0.05
    assert found.best.half_width is not None
    assert found.best.hours == pytest.approx(PARTS * PART_S / 3600)
    assert [day.begin_unix for day in seen] == sorted((day.begin_unix for day in seen), reverse=True), "newest first"


def test_what_is_replayed_in_time_counts_and_one_part_is_too_little() -> None:
    candidates = (ForwardChoice(ForwardPolicy.CONSTANT, 30.0),)
    full, replay = replays()
    answer_order(order(candidates), journal(), PRESENT, replay)
    each = len(full) // PARTS
    _, replay = replays(3 * each + 1)
    found = answer_order(order(candidates), journal(), PRESENT, replay)
    assert found.best is not None
    assert found.best.hours == pytest.approx(3.0)
    _, replay = replays(2 * each - 1)
    found = answer_order(order(candidates), journal(), PRESENT, replay)
    assert found.best is None
    assert "1 parts of the past could be replayed; it takes 2 parts of 1 h" in found.note


def test_the_time_since_a_step_is_replayed_with_what_was_before() -> None:
    before = ForwardChoice(ForwardPolicy.CONSTANT, 120.0)
    seen, replay = replays()
    found = answer_order(order((), before), journal(), PRESENT, replay)
    assert found.best is None
    assert found.back is not None
    assert found.back.choice == before
    assert found.back.mean > 0.05, "the step to 15 s was wrong"
    assert {day.begin_unix for day in seen} == {2 * PART_S}
    late = replace(order((), before), question=TuningQuestion(SHORT, (), before, PARTS * PART_S + 5))
    assert answer_order(late, journal(), PRESENT, replay).back is None
