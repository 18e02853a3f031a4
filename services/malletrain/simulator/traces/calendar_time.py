"""Calendar times of logs as seconds, all of a conversion against one clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from malletrain.runtime.errors import InvalidInputError

_EPOCH = datetime(1970, 1, 1)
_NUMBER = re.compile(r"\d{8,}(\.\d+)?")
_CTIME = "%a %b %d %H:%M:%S %Y"


class CalendarReader:
    """Reads the times of one conversion.

    Times with a zone (and numbers, which are seconds since 1970 in UTC) and times without one can't be told apart from
    each other's point of view, so one conversion may have only one kind. Local times are taken as they are written:
    an hour that daylight saving time skips or repeats stays so.
    """

    def __init__(self) -> None:
        self._zoned: bool | None = None
        self._first_place = ""

    def read(self, text: str, place: str) -> float:
        """Seconds since 1970, in UTC or in the log's local time.

        Args:
            text: `2026-11-21T03:02:27` with or without a zone, `Sat Nov 21 03:02:27 2026` or `1795231914`.
            place: What an error names.

        Raises:
            InvalidInputError: the text is no time, or of the other kind than those before.
        """
        moment = _parse(text)
        if moment is None:
            raise InvalidInputError(
                place, "a time such as 2026-11-21T03:02:27, with or without a zone, or seconds since 1970", text
            )
        zoned = moment.tzinfo is not None
        if self._zoned is None:
            self._zoned, self._first_place = zoned, place
        elif zoned != self._zoned:
            kind = "with a zone or as seconds since 1970" if self._zoned else "without a zone"
            raise InvalidInputError(place, f"a time {kind}, like that of {self._first_place}", text)
        plain = moment.astimezone(UTC).replace(tzinfo=None) if zoned else moment
        return (plain - _EPOCH).total_seconds()

    def origin(self, seconds: float) -> str:
        """The time `seconds` after 1970 as a trace's `origin`."""
        moment = _EPOCH + timedelta(seconds=seconds)
        return (moment.replace(tzinfo=UTC) if self._zoned else moment).isoformat()


def _parse(text: str) -> datetime | None:
    text = text.strip()
    try:
        if _NUMBER.fullmatch(text):
            return datetime.fromtimestamp(float(text), UTC)
        if text[:1].isdigit():
            # A mere date or compact form is left to no guess: `-` and `:` must be there.
            return datetime.fromisoformat(text) if "-" in text and ":" in text else None
        return datetime.strptime(" ".join(text.split()), _CTIME)
    except (ValueError, OverflowError, OSError):
        return None
