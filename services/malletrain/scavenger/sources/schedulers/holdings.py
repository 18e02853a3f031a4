"""What we hold of a scheduler's nodes ourselves: such a node is not idle for the scheduler, and yet ours to use."""

from __future__ import annotations

from typing import Protocol


class Holdings(Protocol):
    """Placeholders that live."""

    def nodes(self) -> frozenset[str]:
        """Nodes on which a placeholder of ours runs now."""

    def jobs(self) -> frozenset[str]:
        """Identifiers of our placeholders, pending ones included: their planned starts end nobody's idleness."""


class NoHoldings:
    """Nothing is held: nodes are only watched."""

    def nodes(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def jobs(self) -> frozenset[str]:
        """None."""
        return frozenset()
