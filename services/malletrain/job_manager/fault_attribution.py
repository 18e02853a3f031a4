"""Which node is to blame when workers fail. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_LEAST_FAILURES = 2


def at_fault(failures: Mapping[str, int], nodes: int) -> str | None:
    """The node at fault: the only one on which a job's workers fail, and they fail there repeatedly.

    If the script is at fault, workers fail on all nodes. A job on one node does not tell which of the two it is.

    Args:
        failures: Failed workers by node.
        nodes: How many nodes the job uses.
    """
    bad = [node for node, count in failures.items() if count > 0]
    return bad[0] if nodes > 1 and len(bad) == 1 and failures[bad[0]] >= _LEAST_FAILURES else None
