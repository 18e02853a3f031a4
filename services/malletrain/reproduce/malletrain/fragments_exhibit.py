"""MalleTrain's Fig. 2, from a log whose names of nodes say where they are: idle nodes are scattered."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.reproduce.exhibits import Exhibit, rounded
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import lines

_NAME = re.compile(r"(.*?[A-Za-z]?\d+)n\d+")
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Scatter:
    """Where idle nodes are at some moment.

    Attributes:
        idle: How many there are.
        cabinets: In how many cabinets.
        fewest: How many cabinets could hold them, if whole cabinets were free.
        alone: How many have no other idle node in their cabinet.
    """

    idle: int
    cabinets: int
    fewest: int
    alone: int


def cabinet_of(node: str) -> str | None:
    """The cabinet that a name such as `c05n06` says; None: the name says none."""
    found = _NAME.fullmatch(node)
    return found[1] if found else None


def scatter_of(idle: Sequence[str], sizes: Counter[str]) -> Scatter:
    """Where nodes are.

    Args:
        idle: Their names, all of which say a cabinet.
        sizes: How many nodes each cabinet of the machine has.
    """
    counts = Counter(cabinet for node in idle if (cabinet := cabinet_of(node)) is not None)
    fewest, left = 0, len(idle)
    for size in sorted(sizes.values(), reverse=True):
        if left <= 0:
            break
        fewest, left = fewest + 1, left - size
    return Scatter(len(idle), len(counts), fewest, sum(count == 1 for count in counts.values()))


def fragments_exhibit(scenario: Scenario) -> Exhibit | None:
    """Fig. 2 at every full hour; None: the names of the nodes say nothing of where they are."""
    cabinets = [cabinet_of(node) for node in scenario.nodes]
    if None in cabinets or len(set(cabinets)) < 2:
        return None
    sizes = Counter(cabinet for cabinet in cabinets if cabinet is not None)
    hours, found = [], []
    idle: set[str] = set()
    events = iter(scenario.events)
    event = next(events, None)
    for hour in range(int(scenario.duration_s // _HOUR_S)):
        while event is not None and event.time_s <= hour * _HOUR_S:
            idle -= set(event.left)
            idle |= {name for name, _ in event.joined}
            event = next(events, None)
        if idle:
            hours.append(float(hour))
            found.append(scatter_of(sorted(idle), sizes))
    if not found:
        return None
    rows = [(hour, one.idle, one.cabinets, one.fewest, one.alone) for hour, one in zip(hours, found, strict=True)]
    mean = [statistics.fmean(column) for column in zip(*(row[1:] for row in rows), strict=True)]
    return Exhibit(
        "figure-2",
        "Fig. 2: idle nodes are scattered over the machine",
        ("hour", "idle nodes", "cabinets that they are in", "fewest cabinets for as many", "alone in their cabinet"),
        rounded(rows),
        f"The paper draws one moment of Polaris. Here: {len(sizes)} cabinets of this log, by the names of its nodes; "
        f"in the mean {mean[0]:.1f} idle nodes in {mean[1]:.1f} cabinets, where {mean[2]:.1f} would hold them; "
        f"{100 * mean[3] / mean[0]:.0f} % have no idle node beside them.",
        lines(
            "Fig. 2: cabinets with idle nodes",
            "hour",
            Axis("cabinets", zero=True),
            {
                "cabinets that idle nodes are in": (hours, [float(one.cabinets) for one in found]),
                "fewest cabinets for as many": (hours, [float(one.fewest) for one in found]),
            },
        ),
    )
