"""When a slot's worker may be started again after failures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 15.0
_WINDOW_SECONDS = 600.0
_MOST_FAILURES = 6


@dataclass(frozen=True)
class Failures:
    """A slot's failures of the last ten minutes.

    Each failure of a member costs the others a time-out and a rollback: a slot that keeps failing is left alone.

    Attributes:
        times: When they were, in monotonic seconds.
    """

    times: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.times)

    def noted(self, now: float) -> Failures:
        """The failures with one more."""
        recent = (time for time in self.times if now - time < _WINDOW_SECONDS)
        return Failures((*recent, now)[-_MOST_FAILURES:])

    def over(self, now: float) -> bool:
        """Whether the slot's worker may be started: after a pause that doubles, or ten minutes after six failures."""
        if not self.times:
            return True
        if self.count >= _MOST_FAILURES:
            return now - self.times[0] >= _WINDOW_SECONDS
        pause: float = min(_FIRST_PAUSE_SECONDS * 2.0 ** (self.count - 1), _LONGEST_PAUSE_SECONDS)
        return now - self.times[-1] >= pause
