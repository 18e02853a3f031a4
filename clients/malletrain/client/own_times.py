"""How long a worker's own part of a step takes, without its wait for the others. Pure.

In synchronous training all workers have the same time per step: who is ready early waits for the last one. So what is
told of a worker is the time from the end of its optimizer's step to its last gradient: what it took before it waited.
"""

from __future__ import annotations

import json
import math
from collections import deque
from statistics import median
from typing import NamedTuple

from malletrain.common.untrusted_json import UntrustedJsonError, parse_object

MAX_SECONDS = 1e6
"""Longer steps are not told."""
FILE_BYTES = 1024
"""Size of the file in which a worker tells its times; always the same, so that a reader sees no half of it."""

TELL_SECONDS = 10.0
"""Time between two messages of a worker, at least."""
MIN_STEPS = 20
"""Steps that each message rests on, at least."""
_MAX_STEPS = 512
_MAX_NODE = 256
_MAX_COUNT = 2**60


class WorkerTimes(NamedTuple):
    """What one worker tells of its newest steps.

    Attributes:
        rank: Its rank.
        node: Name of its node.
        steps: Steps that have been measured in this process so far; the figures are of those since it told last.
        own_seconds: Median of its own part of a step.
        step_seconds: Median of a whole step.
    """

    rank: int
    node: str
    steps: int
    own_seconds: float
    step_seconds: float


class OwnTimes:
    """The newest steps of this worker."""

    def __init__(self, now: float) -> None:
        """Begin at a time, in seconds of a monotonic clock."""
        self._steps: deque[tuple[float, float]] = deque(maxlen=_MAX_STEPS)
        self._count = self._fresh = 0
        self._told = now

    def add(self, own_seconds: float, step_seconds: float) -> None:
        """Count a step. One whose parts can't be true is left out."""
        if 0 <= own_seconds <= step_seconds <= MAX_SECONDS:
            self._steps.append((own_seconds, step_seconds))
            self._count += 1
            self._fresh += 1

    def take(self, rank: int, node: str, now: float) -> WorkerTimes | None:
        """What is to be told now; None: nothing yet."""
        if self._fresh < MIN_STEPS or now - self._told < TELL_SECONDS:
            return None
        own, whole = zip(*self._steps, strict=True)
        self._steps.clear()
        self._fresh, self._told = 0, now
        return WorkerTimes(rank, node, self._count, median(own), median(whole))


def to_bytes(times: WorkerTimes) -> bytes:
    """What is written to the worker's file.

    Raises:
        ValueError: it is too long.
    """
    text = json.dumps(times._asdict()).encode()
    if len(text) > FILE_BYTES:
        raise ValueError(f"step times: expected at most {FILE_BYTES} bytes, got {len(text)}")
    return text.ljust(FILE_BYTES)


def from_bytes(content: bytes, rank: int) -> WorkerTimes | None:
    """What a worker of a rank has written; None where it can't be that. The job's own processes may write anything."""
    try:
        document = parse_object(content[:FILE_BYTES])
    except UntrustedJsonError:
        return None
    match document:
        case {
            "rank": int(told),
            "node": str(node),
            "steps": int(steps),
            "own_seconds": int() | float() as own,
            "step_seconds": int() | float() as whole,
        } if told == rank and 0 < len(node) <= _MAX_NODE and node.isprintable() and 0 < steps <= _MAX_COUNT:
            if math.isfinite(whole) and 0 <= own <= whole <= MAX_SECONDS:
                return WorkerTimes(rank, node, steps, float(own), float(whole))
    return None
