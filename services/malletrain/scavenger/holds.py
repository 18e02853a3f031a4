"""Reclaims that outlive the process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from malletrain.scavenger.state_file import read_state, write_state


class HoldsFile:
    """Until when reclaimed nodes stay out, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, float]:
        """What was stored last: each node with the time, in seconds since the epoch."""
        found = read_state(self._path)
        return {name: float(until) for name, until in found.items() if isinstance(until, int | float)}

    def write(self, holds: Mapping[str, float]) -> None:
        """Store; a failure is logged, as the nodes are out all the same and only a restart would forget it."""
        try:
            write_state(self._path, dict(holds))
        except OSError as error:
            structlog.get_logger(__name__).error("reclaims could not be stored", error=str(error))
