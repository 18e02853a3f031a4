"""Which node is to blame when workers fail. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from malletrain.common.gpus import node_of

_LEAST_FAILURES = 2


def failures_by_node(failures: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Failed workers by node.

    Args:
        failures: Pairs of a node, or a GPU of a member of a fleet, and how many workers have failed there.
    """
    found: Counter[str] = Counter()
    for name, count in failures:
        found[node_of(name)] += count
    return dict(found)


def at_fault(failures: Mapping[str, int], nodes: int) -> str | None:
    """The node at fault: the only one on which a job's workers fail, and they fail there repeatedly.

    If the script is at fault, workers fail on all nodes. A job on one node does not tell which of the two it is.

    Args:
        failures: Failed workers by node.
        nodes: How many nodes the job uses.
    """
    bad = [node for node, count in failures.items() if count > 0]
    return bad[0] if nodes > 1 and len(bad) == 1 and failures[bad[0]] >= _LEAST_FAILURES else None
