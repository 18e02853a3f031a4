"""Parts of lists of nodes. A job may have a thousand: what is looked up in the other list is a set."""

from __future__ import annotations

from collections.abc import Iterable


def within(nodes: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The nodes that are among the others, in their order."""
    known = frozenset(others)
    return tuple(node for node in nodes if node in known)


def without(nodes: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The nodes that are not among the others, in their order."""
    known = frozenset(others)
    return tuple(node for node in nodes if node not in known)
