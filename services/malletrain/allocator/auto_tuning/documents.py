"""Questions, answers and states of auto-tuning as JSON: for the process that replays, and for the database. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar

from malletrain.allocator.auto_tuning.machine import TuningAnswer, TuningQuestion, TuningState
from malletrain.runtime.kernel.documents import from_document, to_document

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TuningOrder:
    """The input of the process that replays.

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


def to_json(value: TuningOrder | TuningAnswer | TuningState) -> str:
    """An order, an answer or a state as JSON."""
    return json.dumps(to_document(value))


def from_json(kind: type[_T], text: str) -> _T:
    """What `to_json` has made JSON of.

    Args:
        kind: What it is.
        text: The JSON; fields that a later version has added are left out.

    Raises:
        ValueError: it is something else.
    """
    return from_document(kind, json.loads(text), ignore_unknown=True)
