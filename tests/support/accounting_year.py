"""A synthetic dump of `sacct -D -T -P`, of which the idle share is known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

HEADER = "JobID|JobName|Start|End|Elapsed|NodeList|State\n"
HOUR_S = 3600.0
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_BLOCKS = (4, 8, 16, 32)
"""Sizes of jobs with several nodes; each size has nodes of its own."""
_ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 1007", "OUT_OF_MEMORY", "NODE_FAIL")
_NAMES = ("align", "train|eval", "a|b|c", "two\nlines", "run", "relax", "2026-01-05T08:00:00|x", "caf\udce9")
_NAME_WEIGHTS = (400, 8, 4, 1, 300, 280, 1, 6)


@dataclass(frozen=True)
class YearSpec:
    """What is drawn.

    Attributes:
        nodes: Nodes of the system.
        days: Length of the query.
        runs: Runs of jobs, about.
        idle_share: Idle share, about; the drawn one is counted.
        zone: Zone of the times that are printed.
        runaway: Runs whose end the database has missed.
        seed: Of everything.
    """

    nodes: int = 900
    days: float = 365
    runs: int = 973_135
    idle_share: float = 0.1486
    zone: str = "UTC"
    runaway: int = 40
    seed: int = 33


@dataclass
class DrawnYear:
    """What was drawn; complete when all of `lines` were taken.

    Attributes:
        spec: What was asked for.
        rows: Rows that were printed.
        runs: Runs among them.
        idle_share: Idle share of the whole query.
    """

    spec: YearSpec
    rows: int = 0
    runs: int = 0
    idle_share: float = 0.0
    _held_s: float = field(default=0.0, repr=False)

    def lines(self) -> Iterator[str]:
        """The dump, row by row, node by node."""
        spec = self.spec
        draw = random.Random(spec.seed)
        end_s = spec.days * 24 * HOUR_S
        units = list(_units(spec.nodes))
        # One run and the gap after it, on one unit of nodes.
        period_s = len(units) * end_s / spec.runs
        busy_s, gap_s = period_s * (1 - spec.idle_share), period_s * spec.idle_share
        stamp = _Stamps(ZoneInfo(spec.zone))
        runaway = {draw.randrange(spec.runs) for _ in range(spec.runaway)}
        yield HEADER
        job, requeued = 1000, False
        for nodes, count in units:
            # Some run since long before the query, as most do that it finds at its begin.
            time_s = -draw.expovariate(1 / busy_s)
            while time_s < end_s:
                # Many short ones and few of some days, as in real logs.
                length_s = max(1.0, busy_s * (draw.lognormvariate(0, 1.2) / 2.054))
                from_s, until_s = float(round(time_s)), float(round(time_s + length_s))
                shown_from, shown_until = max(from_s, 0.0), min(until_s, end_s)
                if shown_until > shown_from:
                    job += not requeued
                    requeued = draw.random() < 0.01
                    state = "REQUEUED" if requeued else draw.choice(_ENDED)
                    ending = stamp.at(shown_until)
                    if until_s > end_s:
                        state = "RUNNING"
                    elif self.runs in runaway:
                        state, ending = "RUNNING", "Unknown"
                    identity = f"{job // 50}_{job % 50}" if job % 3 == 0 else f"{job}"
                    name = draw.choices(_NAMES, _NAME_WEIGHTS)[0]
                    elapsed = _elapsed(shown_until - shown_from)
                    self.runs += 1
                    self._held_s += count * (shown_until - shown_from)
                    self.rows += 1
                    yield f"{identity}|{name}|{stamp.at(shown_from)}|{ending}|{elapsed}|{nodes}|{state}\n"
                    if draw.random() < 0.02:
                        self.rows += 1
                        yield f"{job}_[7-9]|late|Unknown|Unknown|00:00:00|None assigned|{draw.choice(_WAITING)}\n"
                time_s += length_s + draw.expovariate(1 / gap_s)
        self.idle_share = 1 - self._held_s / (spec.nodes * end_s)


_WAITING = ("PENDING", "CANCELLED by 1007")


class _Stamps:
    """Times as `sacct` prints them; a zone is looked up once for each hour."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._hours: dict[int, str] = {}

    def at(self, seconds: float) -> str:
        hour, rest = divmod(int(seconds), 3600)
        if hour not in self._hours:
            self._hours[hour] = (_BEGIN + timedelta(hours=hour)).astimezone(self._zone).strftime("%Y-%m-%dT%H:")
        return f"{self._hours[hour]}{rest // 60:02d}:{rest % 60:02d}"


def _elapsed(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02d}:{minute:02d}:{second:02d}"


def _units(nodes: int) -> Iterator[tuple[str, int]]:
    """Node lists that run one job at a time: a third of the nodes in blocks, the others alone."""
    first = 1
    for size in _BLOCKS:
        for _ in range(nodes // 12 // size):
            yield f"n[{first:04d}-{first + size - 1:04d}]", size
            first += size
    for number in range(first, nodes + 1):
        yield f"n{number:04d}", 1
