"""When the worker of a slot may be started again after failures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 15.0
_WINDOW_SECONDS = 600.0
_MOST_FAILURES = 6


@dataclass(frozen=True)
class RestartBackoff:
    """The failures of a slot within ten minutes.

    Each failure of a member costs the others a rollback, so the pause doubles from failure to failure. After six
    failures the slot has no worker until the first of them is ten minutes old.

    Attributes:
        times: Times of the failures, in monotonic seconds, ascending.
    """

    times: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """Number of failures."""
        return len(self.times)

    def noted(self, now: float) -> RestartBackoff:
        """The state after one more failure."""
        recent = (time for time in self.times if now - time < _WINDOW_SECONDS)
        return RestartBackoff((*recent, now)[-_MOST_FAILURES:])

    def over(self, now: float) -> bool:
        """Whether the worker may be started."""
        if not self.times:
            return True
        if self.count >= _MOST_FAILURES:
            return now - self.times[0] >= _WINDOW_SECONDS
        pause: float = min(_FIRST_PAUSE_SECONDS * 2.0 ** (self.count - 1), _LONGEST_PAUSE_SECONDS)
        return now - self.times[-1] >= pause
