"""The jobs of the main queue: a seeded stream of mixed sizes and lengths. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_SIZES = {1 / 16: 3.0, 1 / 8: 3.0, 3 / 16: 2.0, 1 / 4: 2.0, 3 / 8: 1.5, 1 / 2: 1.5}
"""Sizes of jobs as shares of the machine, and how frequent each is."""
_MIN_S = 6.0
_MAX_S = 30.0
_PERIOD_S = 60.0
_QUIET, _BUSY = 0.35, 1.3
"""Node-seconds that arrive per node-second, in the first and the second half of a period."""


@dataclass(frozen=True)
class MainJob:
    """One job of the main queue.

    Attributes:
        number: Its position in the stream.
        submit_s: When it is submitted, in seconds from the start.
        nodes: Number of nodes, which it uses exclusively.
        seconds: How long it runs.
    """

    number: int
    submit_s: float
    nodes: int
    seconds: float


def make_stream(nodes: int, minutes: float, seed: int) -> tuple[MainJob, ...]:
    """Jobs that leave nodes idle for half a minute and then want more nodes than there are, in turn.

    Args:
        nodes: Size of the machine.
        minutes: During which jobs are submitted.
        seed: Of arrivals, sizes and lengths.
    """
    chance = random.Random(seed)
    shares, weights = list(_SIZES), list(_SIZES.values())
    found: list[MainJob] = []
    now = 0.0
    while True:
        size = max(1, round(nodes * chance.choices(shares, weights)[0]))
        seconds = math.exp(chance.uniform(math.log(_MIN_S), math.log(_MAX_S)))
        now += chance.expovariate(1.0) * size * seconds / nodes / _load(now)
        if now >= 60.0 * minutes:
            return tuple(found)
        found.append(MainJob(len(found), round(now, 3), size, round(seconds, 3)))


def _load(second: float) -> float:
    return _QUIET if second % _PERIOD_S < _PERIOD_S / 2 else _BUSY
