"""How much of a journal is replayed."""

from __future__ import annotations

import math
import re

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.journal.record import Journal

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_MIN_S = 1.0


def parse_span(option: str, text: str) -> float:
    """Seconds of a span of time such as 90m, 24h or 7d.

    Raises:
        InvalidInputError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else math.nan
    if not (math.isfinite(seconds) and seconds >= _MIN_S):
        raise InvalidInputError(option, "a span of time such as 90m, 24h or 7d", text)
    return seconds


def span_of(journal: Journal, since: str | None) -> tuple[float, float, list[str]]:
    """Begin and end of what is replayed, in seconds since the epoch, and what to say about it.

    Args:
        journal: The journal.
        since: How long before the journal's end it begins, e.g. 24h; None: as early as the idle set is known.

    Raises:
        InvalidInputError: `since` is no span of time, or nothing has happened in the journal yet.
    """
    first, end = journal.begin_unix, journal.end_unix
    if end - first < _MIN_S:
        raise InvalidInputError("--journal", "a journal of at least a second", f"{end - first:.1f} s")
    if since is None:
        return first, end, []
    begin = end - parse_span("--since", since)
    if begin < first:
        hours = (end - first) / 3600
        return first, end, [f"The idle set is known for the last {hours:.2f} h only, and not for {since}."]
    return begin, end, []
