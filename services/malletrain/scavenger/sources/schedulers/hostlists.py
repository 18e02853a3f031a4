"""Slurm's node lists: `n[001-003,7],gpu1`. ClusterShell does the work; what it must never be fed is kept out here."""

from __future__ import annotations

import re
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from malletrain.scavenger.sources.schedulers.answers import UnreadableError

MOST_NODES = 100_000
"""More than any machine has: a list that means more is garbage, not a reason to run out of memory."""

_NUMBERS = r"\d{1,9}(?:-\d{1,9})?"
_TEXT = r"[A-Za-z0-9._-]"
_ITEM = rf"(?=[^,])(?:{_TEXT}|\[{_NUMBERS}(?:,{_NUMBERS})*\])+"
# Nothing but names and ranges: ClusterShell's own operators (`&!^@*`) would mean something else, or ask other programs.
_HOSTLIST = re.compile(rf"{_ITEM}(?:,{_ITEM})*")
_BRACKET = re.compile(r"\[([^\]]*)\]")


@lru_cache(maxsize=1024)
def expand(expression: str) -> tuple[str, ...]:
    """Names that a node list means; the same list as in the last poll costs nothing.

    Raises:
        UnreadableError: it is none, or means more than `MOST_NODES`.
    """
    if not _HOSTLIST.fullmatch(expression) or _size(expression) > MOST_NODES:
        raise UnreadableError("a node list such as n[001-003,7],gpu1", expression)
    try:
        return tuple(NodeSet(expression, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise UnreadableError(f"a node list ({error})", expression) from error


def _size(expression: str) -> int:
    """At most how many names it means, before any of them is made."""
    total = 0
    for item in re.split(r",(?![^\[]*\])", expression):
        names = 1
        for inside in _BRACKET.findall(item):
            names *= sum(_length(part) for part in inside.split(","))
        total += names
    return total


def _length(part: str) -> int:
    first, _, last = part.partition("-")
    length = int(last or first) - int(first) + 1
    if length < 1:
        raise UnreadableError("an ascending range", part)
    return length
