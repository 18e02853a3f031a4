"""Since when each node is idle, as far as polls can tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class IdleAges:
    """Remembers when each node was first seen idle."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def update(self, now: float, idle: Iterable[str]) -> dict[str, float]:
        """Each idle node with the time since when, in seconds since the epoch; the others are forgotten."""
        self._since = {name: min(self._since.get(name, now), now) for name in idle}
        return dict(self._since)
