"""Which step of auto-tuning the newest past speaks for, and whether the time since a step speaks against it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from malletrain.allocator.auto_tuning.documents import TuningOrder
from malletrain.allocator.auto_tuning.machine import (
    MIN_GAIN,
    ForwardChoice,
    ReplayedGain,
    TuningAnswer,
    TuningQuestion,
)
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.tuning.trials import (
    PLACES,
    Replay,
    SettingsComparison,
    TunedSettings,
    TuningDay,
    compare,
    day_of,
    replay_alike,
)

_MIN_PARTS = 2


class OutOfTimeError(Exception):
    """There is no time for more replays: what is known has to do."""


def answer_order(order: TuningOrder, journal: Journal, present: TunedSettings, replay: Replay) -> TuningAnswer:
    """Answer an order.

    Args:
        journal: The past.
        present: The settings in force.
        replay: Replays a part of the past; may raise OutOfTimeError.
    """
    if order.question.before is not None:
        return _look_back(order.question, order.question.before, journal, present, replay)
    samples: dict[TunedSettings, list[float]] = {}
    forward = [_with(present, choice) for choice in order.question.candidates]
    places = _places_beside(present)
    hours = 0.0
    try:
        for part in _parts(journal, order.part_s, order.parts):
            compared, outcomes = replay_alike(part, (present, *forward, *places), replay)
            for settings, outcome in outcomes.items():
                samples.setdefault(settings, []).append(outcome.samples)
            hours += compared.duration_s / 3600
    except OutOfTimeError:
        pass
    count = len(samples.get(present, ()))
    if count < _MIN_PARTS:
        need = f"{_MIN_PARTS} parts of {order.part_s / 3600:.2g} h in which jobs trained"
        return TuningAnswer(note=f"{count} parts of the past could be replayed; it takes {need}")
    judged = compare(present, {one: samples[one] for one in (present, *forward)})
    best = None
    if judged.best != present:
        best = _gain(judged, hours)
    return TuningAnswer(best, advice=_advice(compare(present, {one: samples[one] for one in (present, *places)})))


def _look_back(
    request: TuningQuestion, before: ForwardChoice, journal: Journal, present: TunedSettings, replay: Replay
) -> TuningAnswer:
    begin, end = max(request.since_unix, journal.begin_unix), journal.end_unix
    part = day_of(journal, begin, end) if end > begin else None
    if part is None:
        return TuningAnswer(note="nothing has trained since the step")
    earlier = _with(present, before)
    try:
        compared, outcomes = replay_alike(part, (present, earlier), replay)
    except OutOfTimeError:
        return TuningAnswer(note="there was no time to replay the hours since the step")
    gain = compare(present, {settings: [outcome.samples] for settings, outcome in outcomes.items()}).gains[earlier]
    return TuningAnswer(back=ReplayedGain(before, gain.mean, None, compared.duration_s / 3600))


def _parts(journal: Journal, part_s: float, max_parts: int) -> Iterator[TuningDay]:
    """Whole parts of the past in which jobs could train, the newest first."""
    end = journal.end_unix
    for number in range(max_parts):
        begin = end - (number + 1) * part_s
        if begin < journal.begin_unix:
            return
        if (part := day_of(journal, begin, begin + part_s)) is not None:
            yield part


def _places_beside(present: TunedSettings) -> list[TunedSettings]:
    fewer = [count for count in PLACES if count < present.max_parallel][-1:]
    more = [count for count in PLACES if count > present.max_parallel][:1]
    return [replace(present, max_parallel=count) for count in (*fewer, *more)]


def _with(present: TunedSettings, choice: ForwardChoice) -> TunedSettings:
    return replace(present, forward_policy=choice.policy, forward_seconds=choice.seconds)


def _gain(judged: SettingsComparison, hours: float) -> ReplayedGain:
    best = judged.best
    return ReplayedGain(
        ForwardChoice(best.forward_policy, best.forward_seconds),
        judged.counting_gain.mean,
        judged.counting_gain.half_width,
        hours,
    )


def _advice(judged: SettingsComparison) -> tuple[str, ...]:
    """What the Allocator cannot change: how many jobs train at once."""
    gain = judged.counting_gain
    if judged.best == judged.present or gain.mean < MIN_GAIN or gain.may_be_none:
        return ()
    width = "" if gain.half_width is None else f" ± {gain.half_width:.1%}"
    return (f"job_manager.max_parallel = {judged.best.max_parallel} would give {gain.mean:+.1%}{width} samples",)
