"""Which nodes the operator means: `gpu*`, or a node list such as `n[001-032]`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.answers import UnreadableError
from malletrain.scavenger.sources.schedulers.hostlists import expand


def node_filter(include: Sequence[str], exclude: Sequence[str], section: str) -> Callable[[str], bool]:
    """Whether a node is included (by no pattern at all: every node is) and not excluded.

    Args:
        include: Patterns: `*` stands for any text, `?` for one character, brackets as in Slurm's node lists.
        exclude: The same; wins.
        section: Where the settings stand, for errors.

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
