"""A row of numbers as one line of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=*#"
"""Where a terminal has no block characters."""


def sparkline(values: Sequence[float], levels: str = BLOCKS) -> str:
    """A character for each number: the lowest one for the least number, the highest one for the greatest.

    Args:
        values: Finite numbers.
        levels: Characters, from the lowest to the highest.
    """
    if not values:
        return ""
    # Halved, since the distance of two finite numbers may be none.
    least, most = min(values) / 2, max(values) / 2
    if least == most:
        return levels[0] * len(values)
    top = len(levels) - 1
    return "".join(levels[round((value / 2 - least) / (most - least) * top)] for value in values)


def levels_of(encoding: str | None) -> str:
    """The characters that an encoding of a terminal has."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII_LEVELS
    return BLOCKS
