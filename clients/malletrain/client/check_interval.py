"""How many batches pass until the workers check again whether there is something to do."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 0.1
"""Time between two checks. Each costs a small broadcast."""
_MAX_BATCHES = 1000


class CheckInterval:
    """Counts batches until the next check. Rank 0 measures how many fit into the interval."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with a check after the next batch.

        Args:
            clock: Monotonic clock in seconds.
        """
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Check after the next batch: the time of a batch is not known."""
        self._left = 1
        self._checked_at, self._batches = self._clock(), 0
        self._batch_seconds = _SECONDS

    def count(self) -> bool:
        """Count one batch; returns whether a check is due."""
        self._left -= 1
        return self.due

    @property
    def due(self) -> bool:
        """Whether so many batches have been counted that a check is due."""
        return self._left <= 0

    def measure(self) -> int:
        """Batches until the next check, from the time that batches took since the last one.

        Call it once per check, at rank 0.
        """
        now = self._clock()
        if self._batches:
            self._batch_seconds = (now - self._checked_at) / self._batches
        self._checked_at = now
        self._batches = max(1, min(_MAX_BATCHES, round(_SECONDS / max(self._batch_seconds, 1e-6))))
        return self._batches

    def set_batches(self, batches: int) -> None:
        """Set the number of batches until the next check; all workers have the same number."""
        self._left = batches
