"""From how many GPUs a member has on which nodes to the GPUs themselves, such that members keep what they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Gpu = tuple[str, int]
"""Name of a node, and number of a GPU on it, from 0."""
Shares = list[dict[str, int]]
"""For each member, how many GPUs it has on which nodes."""


def relabelled(shares: Shares, nodes: Mapping[str, int], had: Sequence[frozenset[Gpu]]) -> Shares:
    """The same with nodes of one size exchanged, so that members stay where they are."""
    stays: dict[tuple[str, str], int] = {}
    for own, before in zip(shares, had, strict=True):
        present = Counter(node for node, _ in before)
        for name, count in own.items():
            for other, number in present.items():
                stays[name, other] = stays.get((name, other), 0) + min(count, number)
    places = {name: place for place, name in enumerate(nodes)}
    names: dict[str, str] = {}
    taken: set[str] = set()
    pairs = sorted(
        (-count, places[name], name != other, name, other) for (name, other), count in stays.items() if other in nodes
    )
    for *_, name, other in pairs:
        if nodes[name] == nodes[other] and name not in names and other not in taken:
            names[name] = other
            taken.add(other)
    others = sorted(nodes)
    for name, size in nodes.items():
        if name not in names:
            free = (other for other in others if other not in taken and nodes[other] == size)
            names[name] = name if name not in taken else next(free)
            taken.add(names[name])
    return [{names[name]: count for name, count in own.items()} for own in shares]


def named(shares: Shares, nodes: Mapping[str, int], had: Sequence[frozenset[Gpu]]) -> tuple[frozenset[Gpu], ...]:
    """Numbers of GPUs: members keep those that they have, and the others take what is left, from the first."""
    free = {name: dict.fromkeys(range(size)) for name, size in nodes.items()}
    kept: list[list[Gpu]] = []
    for own, before in zip(shares, had, strict=True):
        mine = [
            (name, number)
            for name, count in own.items()
            for number in sorted(number for node, number in before if node == name and number in free[name])[:count]
        ]
        for name, number in mine:
            del free[name][number]
        kept.append(mine)
    for own, mine in zip(shares, kept, strict=True):
        for name, count in own.items():
            missing = count - sum(node == name for node, _ in mine)
            for number in tuple(free[name])[:missing]:
                mine.append((name, number))
                del free[name][number]
    return tuple(frozenset(mine) for mine in kept)
