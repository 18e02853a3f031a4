"""Reads calendar times of logs as seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from malletrain.runtime.errors import InvalidInputError

_EPOCH = datetime(1970, 1, 1)
_NUMBER = re.compile(r"\d{8,}(\.\d+)?")
_CTIME = "%a %b %d %H:%M:%S %Y"


class CalendarReader:
    """Reads the times of one conversion.

    Times with a zone, or numbers (seconds since 1970 in UTC), can't be compared with times without a zone, so that all
    times of one conversion must be of one kind. Times without a zone are used as written: an hour that daylight saving
    time skips or repeats is not corrected.
    """

    def __init__(self) -> None:
        self._zoned: bool | None = None
        self._first_place = ""

    def read(self, text: str, place: str) -> float:
        """Seconds since 1970, in UTC or in the log's local time.

        Args:
            text: `2026-11-21T03:02:27` with or without a zone, `Sat Nov 21 03:02:27 2026` or `1795231914`.
            place: Where the text comes from, for errors.

        Raises:
            InvalidInputError: the text is not a time, or of another kind than the times before.
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
        """Seconds since 1970 as the `origin` of a trace."""
        moment = _EPOCH + timedelta(seconds=seconds)
        return (moment.replace(tzinfo=UTC) if self._zoned else moment).isoformat()


def _parse(text: str) -> datetime | None:
    text = text.strip()
    try:
        if _NUMBER.fullmatch(text):
            return datetime.fromtimestamp(float(text), UTC)
        if text[:1].isdigit():
            # Dates without a time and compact forms are ambiguous: `-` and `:` are required.
            return datetime.fromisoformat(text) if "-" in text and ":" in text else None
        return datetime.strptime(" ".join(text.split()), _CTIME)
    except (ValueError, OverflowError, OSError):
        return None
