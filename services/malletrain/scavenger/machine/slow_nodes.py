"""Which nodes count as slow, and what is only told. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

_KEPT = 3
"""Newest measures of each node. It is not judged before there are so many, and by their medians."""
_MIN_NODES = 4
"""Of a pool, nodes that have been judged."""
_MAX_NODES = 100_000
MAX_SECONDS = 1e4


class NodeSpeed(NamedTuple):
    """How long two fixed pieces of work took on a node: the shortest time of several.

    Attributes:
        hash_seconds: One core hashes 1 MiB.
        copy_seconds: One core copies 32 MiB of memory.
    """

    hash_seconds: float
    copy_seconds: float

    @property
    def valid(self) -> bool:
        """Whether both can be times."""
        return all(math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS for seconds in self)


SpeedTold = Callable[[str, NodeSpeed], object]
"""Told the name of a node and how fast it is."""


class SlowByMeasure(NamedTuple):
    """A node that is slower than its pool.

    Attributes:
        what: What is slow there: "core" or "memory".
        share: How much longer it takes than the pool's median, relative to that.
    """

    name: str
    what: str
    share: float


@dataclass
class NodeSpeeds:
    """The newest measures of each node.

    Attributes:
        share: A node is slow that takes longer than the median of its pool by more than this, relative to that.
    """

    share: float = 0.2
    _kept: dict[str, tuple[NodeSpeed, ...]] = field(default_factory=dict)

    def take_measure(self, name: str, speed: NodeSpeed) -> bool:
        """Take in a measure; whether it is news: an agent that connects again tells the same one."""
        before = self._kept.get(name, ())
        if not speed.valid or speed in before:
            return False
        self._kept.pop(name, None)
        self._kept[name] = (*before, speed)[-_KEPT:]
        if len(self._kept) > _MAX_NODES:
            del self._kept[next(iter(self._kept))]
        return True

    def slow(self, pool_of: Callable[[str], str | None]) -> list[SlowByMeasure]:
        """Nodes that are slower than their pools, by name.

        Args:
            pool_of: The pool of a node; None: there is no such node any more.
        """
        pools: dict[str, dict[str, NodeSpeed]] = {}
        for name, measured in self._kept.items():
            if len(measured) == _KEPT and (pool := pool_of(name)) is not None:
                pools.setdefault(pool, {})[name] = NodeSpeed(*map(median, zip(*measured, strict=True)))
        slow_nodes = [slow for speeds in pools.values() if len(speeds) >= _MIN_NODES for slow in self._slow_in(speeds)]
        return sorted(slow_nodes)

    def _slow_in(self, speeds: Mapping[str, NodeSpeed]) -> list[SlowByMeasure]:
        usual = NodeSpeed(*map(median, zip(*speeds.values(), strict=True)))
        slow_nodes = []
        for name, speed in speeds.items():
            hashing, copying = (mine / others - 1 for mine, others in zip(speed, usual, strict=True))
            what, share = ("core", hashing) if hashing >= copying else ("memory", copying)
            if share > self.share:
                slow_nodes.append(SlowByMeasure(name, what, share))
        return slow_nodes

    def to_json(self) -> dict[str, Any]:
        """What is stored."""
        return {name: [list(speed) for speed in speeds] for name, speeds in self._kept.items()}


def read_speeds(stored: Mapping[str, Any], share: float) -> NodeSpeeds:
    """What was stored; entries that can't be used are left out."""
    speeds = NodeSpeeds(share)
    for name, entries in stored.items():
        for entry in entries if isinstance(entries, list) else ():
            match entry:
                case [float() | int() as hashing, float() | int() as copying]:
                    speeds.take_measure(name, NodeSpeed(float(hashing), float(copying)))
    return speeds


MIN_OWNERS = 2
"""Jobs of so many owners have to call a node slow: never is it by one's word."""


class CalledSlow(NamedTuple):
    """A node that jobs call slow.

    Attributes:
        share: How much slower its workers are than the others of their jobs, by the job that says the most.
        owners: Of how many owners jobs say so.
        job_id: A job that says so.
    """

    name: str
    share: float
    owners: int
    job_id: str


class NodeSlowness(NamedTuple):
    """A node that is called slow.

    Attributes:
        counts: Whether it counts as slow, or is only told.
        reason: Who says so, for people.
    """

    name: str
    counts: bool
    reason: str


def judge(called: Collection[CalledSlow], measured: Iterable[SlowByMeasure] = ()) -> tuple[NodeSlowness, ...]:
    """Which nodes are slow, by name.

    Args:
        called: Nodes that jobs call slow.
        measured: Nodes that are slower than their pools by our own measure, which counts by itself.
    """
    owners = {node.name: node.owners for node in called}
    reasons: dict[str, list[str]] = {}
    counts = {name for name, number in owners.items() if number >= MIN_OWNERS}
    for slow in measured:
        counts.add(slow.name)
        reasons.setdefault(slow.name, []).append(f"its {slow.what} takes {slow.share:.0%} longer than its pool's")
    for node in called:
        reasons.setdefault(node.name, []).append(
            f"its workers take {node.share:.0%} longer than the others of their jobs, "
            f"by jobs of {node.owners} {'owner' if node.owners == 1 else 'owners'} ({node.job_id})"
        )
    return tuple(NodeSlowness(name, name in counts, "; ".join(texts)) for name, texts in sorted(reasons.items()))
