"""In which time zone a viewer reads times: that of the browser, which says it in a cookie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

ZONE_COOKIE = "zone"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}\Z")
_shown: ContextVar[tzinfo] = ContextVar("shown zone", default=UTC)


@lru_cache(maxsize=256)
def zone_named(name: str) -> tzinfo:
    """The zone of a name as browsers know it, such as `Europe/Berlin`; UTC if there is none here."""
    if not _NAME.match(name):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # there is no such file, or it is none of a zone
        return UTC


@contextmanager
def shown_in(zone: tzinfo) -> Iterator[None]:
    """Have times written in a zone. Nothing may be awaited inside."""
    before = _shown.set(zone)
    try:
        yield
    finally:
        _shown.reset(before)


def at(time: float) -> datetime:
    """A time in the zone in which times are written now.

    Args:
        time: In seconds since the epoch.
    """
    return datetime.fromtimestamp(time, _shown.get())


def zone_in_words(time: float) -> str:
    """The zone in which times are written now, as one says it at a time, such as `CET`."""
    return at(time).tzname() or "UTC"
