"""When a loop that saves on request is asked to save without one, so that a kill costs little. Pure."""

from __future__ import annotations

EVERY_SECONDS = 60.0
"""Usual time between two saves."""
_MAX_SHARE = 0.05
"""Share of the time that saves which nobody has requested may take."""


class CommitInterval:
    """The time since the last save, and how long a save takes, by what the loop is late after it."""

    def __init__(self) -> None:
        """Nothing is due before the loop has asked for the first time."""
        self._asked_at: float | None = None
        self._saved_at = 0.0
        self._usual_seconds = 0.0
        self._save_seconds = 0.0
        self._saving = False

    def due(self, now: float, every: float, *, requested: bool) -> bool:
        """Whether to save at this call: a save is requested, or the last one is long enough ago.

        Args:
            now: Seconds of any clock. A step back begins a new interval.
            every: Least time between two saves that are not requested, in seconds. It is longer where they take long.
            requested: Whether a save is requested.
        """
        if self._asked_at is None or now < self._asked_at:
            self._saved_at = now
        elif self._saving:
            self._save_seconds = max(0.0, now - self._asked_at - self._usual_seconds)
            self._saved_at = now
        else:
            self._usual_seconds = now - self._asked_at
        interval = max(every, self._save_seconds / _MAX_SHARE)
        self._saving = requested or now - self._saved_at >= interval
        self._asked_at = now
        return self._saving
