"""What measured points are still worth: they fade with age, and when newer ones contradict them.

Monitor merges new steps into the point of their own scale. Points at *other* scales cannot follow: when a scale that
was measured again turns out 20 % slower (a new data set, a busier file system), points elsewhere that are older than
that news are doubted by those 20 %, until they are measured again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from malletrain.profiler.knots import LEAST_RATE, Knot

_MOST_DRIFT = 0.2


@dataclass(frozen=True)
class Memory:
    """What is remembered of a job's points, by scale in nodes.

    Attributes:
        rates: The rate that the scale was last known by.
        errors: The relative error that it then had.
        doubts: Relative doubt that newer points elsewhere have cast on it.
        times: When the scale was last measured, in seconds since the epoch.
    """

    rates: Mapping[int, float] = field(default_factory=dict)
    errors: Mapping[int, float] = field(default_factory=dict)
    doubts: Mapping[int, float] = field(default_factory=dict)
    times: Mapping[int, float] = field(default_factory=dict)


def remember(memory: Memory, measured: Sequence[Knot], contradiction: float) -> Memory:
    """Take over measured points, and doubt older ones where they are contradicted.

    Args:
        memory: What was known.
        measured: All points of the job, each scale once.
        contradiction: Relative change of a rate that is news, where it is also more than errors explain (twice those of
            both rates together).
    """
    rates, errors, doubts, times = (dict(part) for part in (memory.rates, memory.errors, memory.doubts, memory.times))
    news: list[tuple[float, float]] = []
    for knot in measured:
        if knot.rate < LEAST_RATE:
            continue
        if knot.unix_seconds > times.get(knot.nodes, -math.inf):
            times[knot.nodes] = knot.unix_seconds
            doubts.pop(knot.nodes, None)
        before, error = rates.get(knot.nodes), errors.get(knot.nodes, math.inf)
        jump = 0.0 if before is None else abs(math.log(knot.rate / before))
        contradicted = jump > max(contradiction, 2 * math.hypot(knot.error, error))
        if contradicted:
            news.append((knot.unix_seconds, jump))
        if contradicted or before is None or knot.error < error:
            rates[knot.nodes], errors[knot.nodes] = knot.rate, knot.error
    for when, jump in news:
        for nodes, time in times.items():
            if time < when:
                doubts[nodes] = math.hypot(doubts.get(nodes, 0.0), jump)
    return replace(memory, rates=rates, errors=errors, doubts=doubts, times=times)


def faded(measured: Sequence[Knot], memory: Memory, now: float, drift_per_hour: float) -> list[Knot]:
    """The points with the errors that they have by now.

    Args:
        measured: Points as Monitor knows them.
        memory: What `remember` made of them.
        now: Seconds since the epoch.
        drift_per_hour: Relative error that an hour adds, four hours twice as much (a random walk): throughput drifts
            with file systems and neighbours. Age alone adds no more than 20 %.
    """
    found = []
    for knot in measured:
        age_hours = max(0.0, now - knot.unix_seconds) / 3600.0 if knot.unix_seconds > 0 else 0.0
        drift = min(_MOST_DRIFT, drift_per_hour * math.sqrt(age_hours))
        found.append(knot.doubted(math.hypot(memory.doubts.get(knot.nodes, 0.0), drift)))
    return found


def believable(knots: Sequence[Knot], most_error: float) -> list[Knot]:
    """The points that are still worth something: those within `most_error`, or the best one where none is."""
    kept = [knot for knot in knots if knot.error <= most_error]
    return kept or sorted(knots, key=lambda knot: knot.error)[:1]


def is_usable(min_nodes: int, max_nodes: int, knots: Sequence[Knot], target: float) -> bool:
    """Whether a curve is known well enough not to be measured on purpose.

    Args:
        min_nodes: The job's smallest scale.
        max_nodes: Its largest scale, within reach at present.
        knots: Points that are declared, measured, or of the family.
        target: Relative error that measuring aims at; twice that is good enough here.

    Returns:
        True where both ends are known to within a factor of two in scale, and a scale between them unless they are
        within a factor of four of each other.
    """
    sure = sorted(knot.nodes for knot in knots if knot.error <= 2 * target and knot.rate >= LEAST_RATE)
    if not sure or sure[0] > 2 * min_nodes or 2 * sure[-1] < max_nodes:
        return False
    wanted = 1 if max_nodes == min_nodes else 2 if max_nodes <= 4 * min_nodes else 3
    return len(sure) >= min(wanted, max_nodes - min_nodes + 1)
