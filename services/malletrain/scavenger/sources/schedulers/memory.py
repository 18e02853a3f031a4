"""What a source must not forget over a restart, in a file."""

from __future__ import annotations

from pathlib import Path

import structlog

from malletrain.runtime.clock import Clock
from malletrain.scavenger.sources.schedulers.fragments_seen import IdleAges
from malletrain.scavenger.state_file import read_state, write_state

_EVERY_SECONDS = 30.0


class Memory:
    """Keeps idle ages and lengths. Without a file it keeps nothing."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._written = clock.monotonic()

    def recall(self) -> IdleAges:
        """What was kept last."""
        return IdleAges() if self._path is None else IdleAges.restored(read_state(self._path), self._clock.time())

    def keep(self, ages: IdleAges, *, at_once: bool = False) -> None:
        """Write it down, unless that was done less than 30 s ago; a failure is logged and costs only the memory."""
        if self._path is None or not (at_once or self._clock.monotonic() - self._written >= _EVERY_SECONDS):
            return
        self._written = self._clock.monotonic()
        try:
            write_state(self._path, ages.content(self._clock.time()))
        except OSError as error:
            structlog.get_logger(__name__).error("idle ages could not be stored", error=str(error))
