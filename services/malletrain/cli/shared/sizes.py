"""Sizes of memory as the command reads them."""

from __future__ import annotations

import re

from malletrain.runtime.errors import InvalidInputError

_SIZE = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))? ?([MGT])(?:i?B)?", re.IGNORECASE)
_MIB = {"M": 1, "G": 1 << 10, "T": 1 << 20}


def parse_memory(option: str, text: str, most_mib: int) -> int:
    """`40G`, `1.5T` or `512M` in MiB, rounded up: a G is 1024 MiB. Also with B or iB after the letter.

    Args:
        option: Its option, for errors.
        text: What was given.
        most_mib: The most that is meant, in MiB.

    Raises:
        InvalidInputError: it is something else, none, or more than that.
    """
    expected = f"a size such as 40G, 512M or 1.5T, at least 1M and at most {most_mib // _MIB['T']}T"
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidInputError(option, expected, text)
    whole, fraction, unit = found.groups()
    parts: int = 10 ** len(fraction or "")
    mib = -(-int(whole + (fraction or "")) * _MIB[unit.upper()] // parts)
    if not 1 <= mib <= most_mib:
        raise InvalidInputError(option, expected, text)
    return mib
