"""Sizes as callers write them: of memory, and of burst buffer."""

from __future__ import annotations

import re

from malletrain.model.burst_buffer import GB_PER_TB
from malletrain.runtime.errors import InvalidInputError

_SIZE = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))? ?([MGT])(?:i?B)?", re.IGNORECASE)
_AMOUNT = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))? ?(GB|TB)?\Z", re.IGNORECASE)
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
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(option, expected, text)
    whole, fraction, unit = match.groups()
    parts: int = 10 ** len(fraction or "")
    mib = -(-int(whole + (fraction or "")) * _MIB[unit.upper()] // parts)
    if not 1 <= mib <= most_mib:
        raise InvalidInputError(option, expected, text)
    return mib


def parse_burst_buffer(text: str) -> int:
    """`2TB`, `1.5TB`, `500GB` or `2000` in GB.

    Raises:
        InvalidInputError: it is something else, negative, or no whole number of GB.
    """
    match = _AMOUNT.match(text.strip())
    if match is not None:
        whole, thousandths, unit = match.groups()
        if (unit or "").upper() == "TB":
            return int(whole) * GB_PER_TB + int((thousandths or "").ljust(3, "0"))
        if not int(thousandths or 0):
            return int(whole)
    raise InvalidInputError("--burst-buffer", "whole GB, such as 2000, 500GB or 1.5TB", text)
