"""Reads calendar times of logs as seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from malletrain.runtime.errors import InvalidInputError

_EPOCH = datetime(1970, 1, 1)
_NUMBER = re.compile(r"\d{8,}(\.\d+)?")
_CTIME = "%a %b %d %H:%M:%S %Y"
_ISO_LENGTH = 19
_ZONED = "with a zone or as seconds since 1970"
_PLAIN = "without a zone"
_RELATIVE = "as seconds that are not of a calendar"
MIN_TIME_S = 631_152_000.0
MAX_TIME_S = 4_102_444_800.0
"""1990 and 2100: no log has jobs outside of these; a clock that was wrong has."""
_CLOCK_CHANGE_S = 3600.0
"""By how much clocks go back at the end of summer time, nearly everywhere."""
CLOCK_WENT_BACK = "an end up to an hour before the start: taken as the end of summer time, when clocks go back"
REPEATED_HOUR = (
    "a time in the hour that the end of summer time repeats: taken as its first pass where both are possible"
)


def time_zone(name: str) -> ZoneInfo:
    """A time zone by its name.

    Raises:
        InvalidInputError: there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInputError("--zone", "a time zone such as Europe/Berlin", name) from error


class CalendarReader:
    """Reads the times of one conversion.

    Times with a zone, or numbers (seconds since 1970 in UTC), can't be compared with times without a zone, so that all
    times of one conversion must be of one kind. Times without a zone are of the zone that is given. Without one they
    are used as written: an hour that summer time skips or repeats is not corrected. A third kind are the seconds of
    logs whose calendar was taken away.

    Args:
        zone: Zone of the times that are written without one; None: not known.
    """

    def __init__(self, zone: ZoneInfo | None = None) -> None:
        self._zone = zone
        self._kind: str | None = None
        self._first_place = ""

    def read(self, text: str, place: str) -> float:
        """Seconds since 1970, in UTC or in the log's local time.

        Args:
            text: `2026-11-21T03:02:27` with or without a zone, `Sat Nov 21 03:02:27 2026` or `1795231914`.
            place: Where the text comes from, for errors.

        Raises:
            InvalidInputError: the text is not a time, or of another kind than the times before.
        """
        return self._seconds(self._moment(text, place))

    def read_interval(
        self, begin: str, end: str, place: str, elapsed_s: float | None = None
    ) -> tuple[float, float, str]:
        """Begin and end as `read` reads them, across the end of summer time as well.

        Args:
            begin: A time.
            end: A time, which is not before it but for a clock that went back.
            place: Where they come from, for errors.
            elapsed_s: How many seconds lie between them; None: not known.

        Returns:
            Both, and what was assumed: empty if nothing was.

        Raises:
            InvalidInputError: one is not a time, or the end is before the begin.
        """
        first, last = self._moment(begin, place), self._moment(end, place)
        from_s, until_s = self._seconds(first), self._seconds(last)
        assumed = ""
        if self._zone is not None and first.tzinfo is self._zone:
            passes = [(from_s, until_s)]
            from_2, until_2 = (self._seconds(moment.replace(fold=1)) for moment in (first, last))
            if from_2 != from_s or until_2 != until_s:
                assumed = "" if elapsed_s is not None else REPEATED_HOUR
                passes += [(from_s, until_2), (from_2, until_2), (from_2, until_s)]
            possible = [pair for pair in passes if pair[0] <= pair[1]]
            if possible:
                wanted = 0.0 if elapsed_s is None else elapsed_s
                # Without a known length the first that is possible is the earliest pass of both.
                near = possible if elapsed_s is not None else possible[:1]
                from_s, until_s = min(near, key=lambda pair: abs(pair[1] - pair[0] - wanted))
        elif self._kind == _PLAIN and 0 < from_s - until_s <= _CLOCK_CHANGE_S:
            length_s = until_s + _CLOCK_CHANGE_S - from_s if elapsed_s is None else elapsed_s
            return from_s, from_s + length_s, CLOCK_WENT_BACK
        if until_s < from_s:
            raise InvalidInputError(place, f"an end at or after the start ({begin})", end)
        return from_s, until_s, assumed

    def read_seconds(self, seconds: float, place: str) -> float:
        """Seconds since any begin: those of a log whose calendar was taken away.

        Raises:
            InvalidInputError: the times before were of another kind.
        """
        self._check_kind(_RELATIVE, place, f"{seconds:g}")
        return seconds

    def origin(self, seconds: float) -> str | None:
        """Seconds as the `origin` of a trace; None if the calendar is not known."""
        return None if self._kind == _RELATIVE else self.text(seconds)

    def text(self, seconds: float) -> str:
        """Seconds as a time for people."""
        if self._kind == _RELATIVE:
            return f"second {seconds:.0f}"
        moment = _EPOCH + timedelta(seconds=seconds)
        return (moment.replace(tzinfo=UTC) if self._kind == _ZONED else moment).isoformat()

    @property
    def has_calendar(self) -> bool:
        """Whether the times are of a calendar."""
        return self._kind != _RELATIVE

    def _moment(self, text: str, place: str) -> datetime:
        moment = _parse(text)
        if moment is None:
            raise InvalidInputError(
                place, "a time such as 2026-11-21T03:02:27, with or without a zone, or seconds since 1970", text
            )
        if moment.tzinfo is None and self._zone is not None:
            moment = moment.replace(tzinfo=self._zone)
        kind = _PLAIN if moment.tzinfo is None else _ZONED
        if kind != self._kind:
            self._check_kind(kind, place, text)
        return moment

    def _check_kind(self, kind: str, place: str, text: str) -> None:
        if self._kind is None:
            self._kind, self._first_place = kind, place
        elif kind != self._kind:
            raise InvalidInputError(place, f"a time {self._kind}, like that of {self._first_place}", text)

    @staticmethod
    def _seconds(moment: datetime) -> float:
        return moment.timestamp() if moment.tzinfo is not None else (moment - _EPOCH).total_seconds()


def _parse(text: str) -> datetime | None:
    try:
        if len(text) == _ISO_LENGTH and text[13] == ":":
            return datetime.fromisoformat(text)
        text = text.strip()
        if _NUMBER.fullmatch(text):
            return datetime.fromtimestamp(float(text), UTC)
        if text[:1].isdigit():
            # Dates without a time and compact forms are ambiguous: `-` and `:` are required.
            return datetime.fromisoformat(text) if "-" in text and ":" in text else None
        return datetime.strptime(" ".join(text.split()), _CTIME)
    except (ValueError, OverflowError, OSError):
        return None
