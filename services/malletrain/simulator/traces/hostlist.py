"""Slurm's hostlist expressions: `n[001-003,7],gpu1`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from malletrain.runtime.errors import InvalidInputError

MAX_NODES = 1_000_000
"""More nodes than any machine has. A longer expression is an error, and would exhaust the memory."""

_NAME = re.compile(r"[^\s\[\],|;]+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(expression: str, place: str = "hostlist") -> tuple[str, ...]:
    """Expand a hostlist to names, in its order and with its duplicates.

    A bracket contains numbers and ranges; a range keeps the leading zeros of its first number. A name may have several
    brackets (`rack[1-2]n[1-4]`), and text after them.

    Args:
        expression: E.g. `n[001-003,7],gpu1`.
        place: Where the expression comes from, for errors.

    Raises:
        InvalidInputError: the expression is not a hostlist, or has more than `MAX_NODES` names.
    """
    names = tuple(itertools.islice(_names(expression, place), MAX_NODES + 1))
    if len(names) > MAX_NODES:
        raise InvalidInputError(place, f"a node list of at most {MAX_NODES} nodes", _shorten(expression))
    return names


def _names(expression: str, place: str) -> Iterator[str]:
    for item in _items(expression, place):
        parts = re.split(r"\[([^\[\]]*)\]", item)
        if any("[" in part or "]" in part for part in parts) or not _NAME.fullmatch("".join(parts[::2]) or "\n"):
            raise _malformed_error(expression, place)
        # re.split with a group returns text and the content of brackets alternately.
        choices = [
            [part] if index % 2 == 0 else list(_numbers(part, expression, place)) for index, part in enumerate(parts)
        ]
        yield from map("".join, itertools.product(*choices))


def _items(expression: str, place: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    depth = begin = 0
    for index, character in enumerate(expression):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise _malformed_error(expression, place)
        if character == "," and depth == 0:
            yield expression[begin:index]
            begin = index + 1
    if depth:
        raise _malformed_error(expression, place)
    yield expression[begin:]


def _numbers(inside: str, expression: str, place: str) -> Iterator[str]:
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise _malformed_error(expression, place)
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MAX_NODES:
            raise _malformed_error(expression, place)
        width = len(first)
        yield from (f"{number:0{width}d}" for number in range(int(first), int(last) + 1))


def _malformed_error(expression: str, place: str) -> InvalidInputError:
    return InvalidInputError(place, "a node list such as n[001-003,7],gpu1", _shorten(expression))


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
