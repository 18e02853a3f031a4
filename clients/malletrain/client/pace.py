"""How many batches pass until the workers look again whether something is to be done."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 0.1
"""Time between two looks: each costs a tiny broadcast."""
_MOST_BATCHES = 1000


class Pace:
    """Counts batches down to the next look; rank 0 measures how many they are to be."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin.

        Args:
            clock: Seconds.
        """
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Look after the next batch: nothing is known of the time that one takes."""
        self._left = 1
        self._looked_at, self._batches = self._clock(), 0
        self._batch_seconds = _SECONDS

    def count(self) -> bool:
        """Count one batch; True when it is time to look."""
        self._left -= 1
        return self._left <= 0

    def measured(self) -> int:
        """Batches until the next look, at the speed of those since the last one. Call once per look, at rank 0."""
        now = self._clock()
        if self._batches:
            self._batch_seconds = (now - self._looked_at) / self._batches
        self._looked_at = now
        self._batches = max(1, min(_MOST_BATCHES, round(_SECONDS / max(self._batch_seconds, 1e-6))))
        return self._batches

    def wait_for(self, batches: int) -> None:
        """Look again after so many batches; all workers have the same number."""
        self._left = batches
