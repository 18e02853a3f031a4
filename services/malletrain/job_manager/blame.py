"""Which node is at fault when workers fail. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_LEAST_FAILURES = 2


def at_fault(failures: Mapping[str, int], nodes: int) -> str | None:
    """The node that stands out: the same program fails there again and again, and nowhere else.

    A script that is wrong fails everywhere, and a job of one node tells nothing about that node.

    Args:
        failures: Failed workers by node.
        nodes: How many nodes the job uses.
    """
    bad = [node for node, count in failures.items() if count > 0]
    return bad[0] if nodes > 1 and len(bad) == 1 and failures[bad[0]] >= _LEAST_FAILURES else None
