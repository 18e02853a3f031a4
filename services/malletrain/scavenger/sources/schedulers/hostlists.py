"""Node lists such as `n[001-003,7],gpu1`, and the patterns by which operators select nodes. Pure.

ClusterShell expands the lists. Its own operators are refused before: they could start programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.availability import UnreadableError

MAX_NODES = 100_000
"""Larger lists are refused as unreadable, before they use up the memory. No machine has so many nodes."""

_NUMBERS = r"\d{1,9}(?:-\d{1,9})?"
_TEXT = r"[A-Za-z0-9._-]"
_ITEM = rf"(?=[^,])(?:{_TEXT}|\[{_NUMBERS}(?:,{_NUMBERS})*\])+"
# Names and ranges only. ClusterShell's operators (`&!^@*`) mean something else, and `@` starts other programs.
_HOSTLIST = re.compile(rf"{_ITEM}(?:,{_ITEM})*")
_BRACKET = re.compile(r"\[([^\]]*)\]")


@lru_cache(maxsize=1024)
def expand(expression: str) -> tuple[str, ...]:
    """The names in a node list. Results are cached, since most lists are the same in the next poll.

    Raises:
        UnreadableError: it is not a node list, or has more than `MAX_NODES` names.
    """
    if not _HOSTLIST.fullmatch(expression) or _size(expression) > MAX_NODES:
        raise UnreadableError("a node list such as n[001-003,7],gpu1", expression)
    try:
        return tuple(NodeSet(expression, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise UnreadableError(f"a node list ({error})", expression) from error


def _size(expression: str) -> int:
    """An upper bound of the number of names, without expanding the list."""
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


def node_filter(include: Sequence[str], exclude: Sequence[str], section: str) -> Callable[[str], bool]:
    """A function that tells whether a node is included and not excluded.

    Args:
        include: Patterns: `*` stands for any text, `?` for one character, brackets as in Slurm's node lists. Without
            any pattern, every node is included.
        exclude: The same; it wins over `include`.
        section: Section of the settings, for error messages.

    Raises:
        InvalidInputError: a pattern can't be read.
    """
    included = _matcher(include, f"{section}.include")
    excluded = _matcher(exclude, f"{section}.exclude")
    return lambda name: (not include or included(name)) and not excluded(name)


def _matcher(patterns: Iterable[str], field: str) -> Callable[[str], bool]:
    names: set[str] = set()
    expressions: list[str] = []
    for index, pattern in enumerate(patterns):
        if "*" in pattern or "?" in pattern:
            if "[" in pattern:
                raise InvalidInputError(f"{field}[{index}]", "brackets or wildcards, not both", pattern)
            expressions.append(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))
        else:
            try:
                names.update(expand(pattern))
            except UnreadableError as error:
                raise InvalidInputError(f"{field}[{index}]", "a node list such as n[001-032]", pattern) from error
    compiled = re.compile("|".join(expressions)) if expressions else None
    return lambda name: name in names or (compiled is not None and compiled.fullmatch(name) is not None)
