"""Parts of lists of nodes. A job may have a thousand: what is looked up in the other list is a set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def within(nodes: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The nodes that are among the others, in their order."""
    known = frozenset(others)
    return tuple(node for node in nodes if node in known)


def whole_replicas(nodes: Sequence[str], others: Iterable[str], size: int) -> tuple[str, ...]:
    """The nodes of those replicas that are among the others with all their nodes, in their order.

    Args:
        nodes: The nodes of each replica follow each other.
        others: Nodes.
        size: Nodes of each replica; 1: it is the same as `within`.
    """
    known = frozenset(others)
    replicas = (nodes[first : first + size] for first in range(0, len(nodes) - len(nodes) % size, size))
    return tuple(node for replica in replicas if known.issuperset(replica) for node in replica)


def without(nodes: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The nodes that are not among the others, in their order."""
    known = frozenset(others)
    return tuple(node for node in nodes if node not in known)
