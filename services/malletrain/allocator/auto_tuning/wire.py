"""Questions, answers and states of auto-tuning as JSON: for the process that replays, and for the database. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from malletrain.allocator.auto_tuning.machine import (
    ForwardChoice,
    ReplayedGain,
    TrialStep,
    TuningAnswer,
    TuningQuestion,
    TuningState,
)
from malletrain.allocator.forward_time import ForwardPolicy


@dataclass(frozen=True, slots=True)
class TuningOrder:
    """What the process that replays is told.

    Attributes:
        question: What to replay.
        part_s: Length of a part of the past in seconds.
        parts: Most parts, the newest ones.
        seconds: How long it may take, in seconds of wall-clock time; then it answers with what it has.
        cpu_share: Share of a core that it may use on average.
    """

    question: TuningQuestion
    part_s: float
    parts: int
    seconds: float
    cpu_share: float


def order_to_json(order: TuningOrder) -> str:
    """An order as JSON."""
    return json.dumps(asdict(order))


def order_from_json(text: str) -> TuningOrder:
    """An order from JSON.

    Raises:
        ValueError: it is none.
    """
    with _Expecting("an order"):
        found = json.loads(text)
        asked = found["question"]
        return TuningOrder(
            TuningQuestion(
                _choice(asked["in_force"]),
                tuple(map(_choice, asked["candidates"])),
                _choice(asked["before"]) if asked["before"] else None,
                float(asked["since_unix"]),
            ),
            float(found["part_s"]),
            int(found["parts"]),
            float(found["seconds"]),
            float(found["cpu_share"]),
        )


def answer_to_json(answer: TuningAnswer) -> str:
    """An answer as JSON."""
    return json.dumps(asdict(answer))


def answer_from_json(text: str) -> TuningAnswer:
    """An answer from JSON.

    Raises:
        ValueError: it is none.
    """
    with _Expecting("an answer"):
        found = json.loads(text)
        return TuningAnswer(
            _gain(found["best"]), _gain(found["back"]), tuple(map(str, found["advice"])), str(found["note"])
        )


def state_to_json(state: TuningState) -> str:
    """A state as JSON."""
    barred = [[asdict(choice), until] for choice, until in state.barred.items()]
    found = asdict(replace(state, barred={})) | {"barred": barred}
    return json.dumps(found)


def state_from_json(text: str) -> TuningState:
    """A state from JSON.

    Raises:
        ValueError: it is none.
    """
    with _Expecting("a state of auto-tuning"):
        found = json.loads(text)
        trial = found["trial"]
        return TuningState(
            _choice(found["configured"]),
            _choice(found["in_force"]),
            None
            if trial is None
            else TrialStep(
                _choice(trial["before"]), float(trial["since_unix"]), int(trial["checks"]), int(trial["failures"])
            ),
            {_choice(choice): float(until) for choice, until in found["barred"]},
            float(found["ran_unix"]),
            str(found["why"]),
        )


class _Expecting:
    """Turns whatever goes wrong with JSON of another form into a ValueError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyError | TypeError | AttributeError | ValueError):
            raise ValueError(f"expected {self._what} as JSON ({error!r})") from error


def _choice(found: Any) -> ForwardChoice:
    return ForwardChoice(ForwardPolicy(found["policy"]), float(found["seconds"]))


def _gain(found: Any) -> ReplayedGain | None:
    if found is None:
        return None
    width = found["half_width"]
    return ReplayedGain(
        _choice(found["choice"]), float(found["mean"]), None if width is None else float(width), float(found["hours"])
    )
