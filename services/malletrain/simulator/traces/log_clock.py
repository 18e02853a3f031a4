"""The local time of a log whose records also have times in seconds since 1970."""

from __future__ import annotations

from collections import Counter, deque
from datetime import UTC, datetime

_QUARTER_S = 900.0
_MAX_DELAY_S = 120.0
_MAX_OFFSET_S = 15 * 3600.0
_REMEMBERED = 5


class LogClock:
    """Learns how far local time is from UTC, and follows changes of the clock."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=_REMEMBERED)

    @staticmethod
    def local_seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float:
        """A time of day as seconds since 1970, as if it were in UTC.

        Raises:
            ValueError: there is no such time.
        """
        return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp()

    def learn(self, local_s: float, time_s: float) -> None:
        """A record of this local time tells of something that happened at this time, or shortly before."""
        offset_s = round((local_s - time_s) / _QUARTER_S) * _QUARTER_S
        # Records that were written late tell nothing.
        if abs(offset_s) <= _MAX_OFFSET_S and abs(local_s - time_s - offset_s) <= _MAX_DELAY_S:
            self._offsets.append(offset_s)

    def seconds(self, local_s: float) -> float | None:
        """Seconds since 1970 of a record of this local time; None if no record has told yet."""
        if not self._offsets:
            return None
        (offset_s, _), *_ = Counter(self._offsets).most_common(1)
        return local_s - offset_s
