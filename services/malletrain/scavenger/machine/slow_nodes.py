"""Which nodes count as slow, and what is only told. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from malletrain.scavenger.machine.node_speeds import SlowByMeasure

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
