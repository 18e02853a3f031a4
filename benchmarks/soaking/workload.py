"""Which nodes are idle when, and which jobs come when. Pure."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.scavenger.idle_trace import Trace

_REAL_SHARE = 0.3
_ARRIVAL_SHARE = 0.75
"""Part of the time in which jobs arrive."""
_DRAINING_NODES = 64
SAMPLES_PER_STEP = 32


@dataclass(frozen=True)
class Arrival:
    """A job that is submitted.

    Attributes:
        at_s: When, in seconds from the start.
        number: From 1 in the order of arrival.
        real: Whether it gets a real supervisor and a process that trains; else stand-ins.
        backend: Launcher backend of a real one.
        most_nodes: Its largest scale.
        samples: Samples after which it is complete.
    """

    at_s: float
    number: int
    real: bool
    backend: str
    most_nodes: int
    samples: int

    @property
    def name(self) -> str:
        """Name of the job."""
        return f"soak-{'real' if self.real else 'stand-in'}-{self.number:03d}"


def plan_arrivals(seed: int, jobs: int, seconds: float) -> tuple[Arrival, ...]:
    """Draw jobs that arrive at random in the first three quarters of the time, by a Poisson process.

    Args:
        seed: The same seed gives the same jobs.
        jobs: How many.
        seconds: Length of the run. Shorter runs get shorter jobs.
    """
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0, _ARRIVAL_SHARE * seconds) for _ in range(jobs))
    real = set(rng.sample(range(jobs), max(2, round(_REAL_SHARE * jobs)))) if jobs > 2 else set(range(jobs))
    size = min(1.0, seconds / 600)
    found = []
    for index, at in enumerate(moments):
        is_real = index in real
        steps = rng.uniform(60, 300) if is_real else rng.uniform(400, 2400)
        found.append(
            Arrival(
                at_s=round(at, 3),
                number=index + 1,
                real=is_real,
                backend=rng.choice(("command", "torchrun")) if is_real else "command",
                most_nodes=2 if is_real else rng.choice((4, 8, 16, 32)),
                samples=SAMPLES_PER_STEP * max(20, round(steps * size)),
            )
        )
    return tuple(found)


class IdleNodes:
    """Which nodes of a trace are idle, at a speed."""

    def __init__(self, trace: Trace, speed: float) -> None:
        """Prepare.

        Args:
            trace: The trace.
            speed: Seconds of the trace per second.
        """
        self._nodes = trace.nodes
        self._speed = speed
        self._since = {name: ([], []) for name in trace.nodes}
        for fragment in trace.fragments:
            begins, ends = self._since[fragment.node]
            begins.append(fragment.idle_from_s)
            ends.append(fragment.idle_until_s)
        self.moments = sorted(
            {
                moment / speed
                for fragment in trace.fragments
                for moment in (fragment.idle_from_s, fragment.idle_until_s)
                if 0 < moment < trace.duration_s
            }
        )
        """When something changes, in seconds from the start."""

    @property
    def names(self) -> Sequence[str]:
        """All nodes, idle or not."""
        return self._nodes

    def at(self, seconds: float) -> frozenset[str]:
        """The idle nodes at a second of the run."""
        second = seconds * self._speed
        return frozenset(name for name in self._nodes if self._is_idle(name, second))

    def while_draining(self) -> frozenset[str]:
        """What is idle after the end of the trace, so that the jobs can end."""
        return frozenset(self._nodes[:_DRAINING_NODES])

    def _is_idle(self, name: str, second: float) -> bool:
        begins, ends = self._since[name]
        index = bisect_right(begins, second) - 1
        return index >= 0 and second < ends[index]


def sinfo_text(names: Sequence[str], idle: frozenset[str]) -> str:
    """What `sinfo -h -o '%T|%N'` prints."""
    lines = [f"idle|{name}" for name in names if name in idle]
    lines += [f"allocated|{','.join(busy)}"] if (busy := [name for name in names if name not in idle]) else []
    return "".join(f"{line}\n" for line in lines)


def taken_nodes(seed: int, names: Sequence[str], seconds: float, mean_s: float = 25.0) -> tuple[tuple[float, str], ...]:
    """When the main scheduler takes or gives back one of the few nodes with agents: moments and names, in order.

    Each entry changes whether its node is taken; at most half of the nodes are taken at once.
    """
    rng = random.Random(seed)
    found: list[tuple[float, str]] = []
    taken: list[str] = []
    at = rng.expovariate(2 / mean_s)
    while at < seconds:
        full = len(taken) >= len(names) // 2
        name = rng.choice(taken if full else list(names))
        taken = [other for other in taken if other != name] if name in taken else [*taken, name]
        found.append((round(at, 3), name))
        at += rng.expovariate(2 / mean_s)
    return tuple(found)
