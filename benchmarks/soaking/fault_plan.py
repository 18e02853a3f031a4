"""Which faults come when: drawn from a seed. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

NameT = TypeVar("NameT", bound=str)
SERVICES = ("scavenger", "allocator", "job_manager", "monitor", "profiler")
MAX_CLOCK_OFFSET_S = 3600.0
_QUIET_AT_FIRST, _QUIET_AT_LAST = 0.05, 0.05
"""Parts of the time in which no fault begins."""


class FaultKind(StrEnum):
    """What can be done to the system."""

    KILL_SERVICE = "kill -9 of a service"
    STOP_SERVICE = "SIGSTOP of a service"
    KILL_SUPERVISOR = "kill -9 of a supervisor"
    STOP_SUPERVISOR = "SIGSTOP of a supervisor"
    KILL_AGENT = "kill -9 of an agent"
    STOP_AGENT = "SIGSTOP of an agent"
    DISK_FULL = "disk full"
    SLOW_DISK = "slow disk"
    CLOCK_STEP = "step of the clock"
    SCHEDULER_GARBAGE = "scheduler answers garbage"
    SCHEDULER_SILENT = "scheduler does not answer"
    SCHEDULER_REFUSES = "scheduler answers with an error"


_LASTS_S = {
    FaultKind.STOP_SERVICE: (0.5, 5.0),
    FaultKind.STOP_SUPERVISOR: (0.5, 5.0),
    FaultKind.STOP_AGENT: (0.5, 5.0),
    FaultKind.DISK_FULL: (1.0, 5.0),
    FaultKind.SLOW_DISK: (2.0, 6.0),
    FaultKind.SCHEDULER_GARBAGE: (1.0, 5.0),
    FaultKind.SCHEDULER_SILENT: (1.0, 6.0),
    FaultKind.SCHEDULER_REFUSES: (1.0, 5.0),
}
"""Shortest and longest duration in seconds; of other kinds 0: they are over at once."""
MAX_S = max(longest for _, longest in _LASTS_S.values())
_OF_A_SERVICE = (FaultKind.KILL_SERVICE, FaultKind.STOP_SERVICE)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        at_s: When it begins, in seconds from the start.
        kind: What is done.
        lasts_s: For how long, in seconds; 0: it is over at once.
        service: Name of the service that is hit; empty where none is meant.
        choice: A number from 0 to 1 by which the victim is chosen among those that are there then.
        offset_s: Offset of the clock from then on, in seconds.
    """

    at_s: float
    kind: FaultKind
    lasts_s: float = 0.0
    service: str = ""
    choice: float = 0.0
    offset_s: float = 0.0

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kind} ({self.service})" if self.service else self.kind.value


def plan_faults(seed: int, seconds: float, mean_gap_s: float, kinds: Collection[FaultKind]) -> tuple[Fault, ...]:
    """Draw faults. All kinds come equally often, and each service is killed and stopped equally often, in random order.

    Args:
        seed: The same seed gives the same faults.
        seconds: Length of the run. No fault begins in its first and last twentieth.
        mean_gap_s: Mean time between the beginnings of two faults, in seconds.
        kinds: What may come; none: nothing comes.

    Raises:
        ValueError: seconds or mean_gap_s is not above 0.
    """
    if not seconds > 0 or not mean_gap_s > 0:
        raise ValueError(f"seconds, mean_gap_s: expected above 0, got {seconds}, {mean_gap_s}")
    rng = random.Random(seed)
    first, last = _QUIET_AT_FIRST * seconds, (1 - _QUIET_AT_LAST) * seconds
    wanted = sorted(kinds)
    if not wanted:
        return ()
    count = max(len(wanted), round((last - first) / mean_gap_s))
    moments = sorted(rng.uniform(first, last) for _ in range(count))
    chosen = _shuffled_rounds(rng, wanted, count)
    services = {kind: _shuffled_rounds(rng, SERVICES, count) for kind in _OF_A_SERVICE}
    return tuple(_draw(rng, at, kind, services) for at, kind in zip(moments, chosen, strict=True))


def _draw(rng: random.Random, at: float, kind: FaultKind, services: dict[FaultKind, list[str]]) -> Fault:
    shortest, longest = _LASTS_S.get(kind, (0.0, 0.0))
    return Fault(
        at_s=round(at, 3),
        kind=kind,
        lasts_s=round(rng.uniform(shortest, longest), 3),
        service=services[kind].pop() if kind in services else "",
        choice=rng.random(),
        offset_s=_clock_offset(rng) if kind is FaultKind.CLOCK_STEP else 0.0,
    )


def _clock_offset(rng: random.Random) -> float:
    """Seconds to an hour, either way, all magnitudes alike."""
    return round(rng.choice((-1, 1)) * math.exp(rng.uniform(0, math.log(MAX_CLOCK_OFFSET_S))), 3)


def _shuffled_rounds(rng: random.Random, names: Collection[NameT], count: int) -> list[NameT]:
    """All names once in random order, again and again, at least `count`."""
    found: list[NameT] = []
    while len(found) < count:
        found += rng.sample(list(names), len(names))
    return found[:count]
