"""Which GPUs of nodes that may differ in size: best fit with gaps, and as few workers moved as possible.

Candidates are the assignment as it is, the members one after the other as in `assignment`, and best fit. The least
score counts, then the fewest workers that have to be started anew: a member whose GPUs stay goes on.

`number_gpus` goes from how many GPUs a member has on which nodes to the GPUs themselves, such that members keep what
they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.fleet.assignment import assign_gpus

_DIGITS = 9


@dataclass(frozen=True, slots=True)
class GpuPlacement:
    """The GPUs of each member.

    Attributes:
        gpus: GPUs of each member.
        score: Sum of nodes over GPUs of all members.
        moved: Workers of members whose GPUs are not those that they had.
    """

    gpus: tuple[frozenset[Gpu], ...]
    score: float
    moved: int


def place(counts: Sequence[int], nodes: Mapping[str, int], held: Sequence[frozenset[Gpu]] = ()) -> GpuPlacement:
    """Place members on nodes.

    Args:
        counts: GPUs of each member, at least 1 each; together no more than there are.
        nodes: GPUs of each node, by its name, in the order of preference.
        held: GPUs that each member has now, each in one member at most, on nodes that may have left; empty: none have
            any.
    """
    had = tuple(held) or (frozenset(),) * len(counts)
    shares = [_in_order(counts, nodes), _best_fit(counts, nodes, had), _best_fit(counts, nodes, ())]
    placements = [number_gpus(relabel_nodes(one, nodes, had), nodes, had) for one in shares]
    there = all(number < nodes.get(node, 0) for own in had for node, number in own)
    if there and all(len(own) == count for own, count in zip(had, counts, strict=True)):
        placements.append(had)
    rated = [_rate_placement(gpus, had) for gpus in placements]
    return min(rated, key=lambda placement: (round(placement.score, _DIGITS), placement.moved))


def _rate_placement(gpus: tuple[frozenset[Gpu], ...], had: Sequence[frozenset[Gpu]]) -> GpuPlacement:
    score = sum(len({node for node, _ in own}) / len(own) for own in gpus)
    moved = sum(len(own) for own, before in zip(gpus, had, strict=True) if own != before)
    return GpuPlacement(gpus, score, moved)


def _in_order(counts: Sequence[int], nodes: Mapping[str, int]) -> Shares:
    """The members one after the other, on nodes from the largest to the smallest."""
    ordered = sorted(nodes, key=lambda name: -nodes[name])
    line = [name for name in ordered for _ in range(nodes[name])]
    shares: Shares = []
    for own in assign_gpus(counts, nodes[ordered[0]]).gpus:
        names = [line[gpu] for gpu in own]
        shares.append({name: names.count(name) for name in dict.fromkeys(names)})
    return shares


def _best_fit(counts: Sequence[int], nodes: Mapping[str, int], had: Sequence[frozenset[Gpu]]) -> Shares:
    """Large members first, each on the node with the least room for all of it, or on the emptiest ones."""
    free = dict(nodes)
    shares: Shares = [{} for _ in counts]
    for member in sorted(range(len(counts)), key=lambda place: -counts[place]):
        remaining_gpus = counts[member]
        known = {node for node, _ in had[member]} if had else set()
        while remaining_gpus:
            wide = [name for name, room in free.items() if room >= remaining_gpus]
            name = (
                min(wide, key=lambda node: (node not in known, free[node]))
                if wide
                else max(free, key=lambda node: (free[node], node in known))
            )
            count = min(remaining_gpus, free[name])
            shares[member][name] = count
            free[name] -= count
            remaining_gpus -= count
    return shares


Gpu = tuple[str, int]
"""Name of a node, and number of a GPU on it, from 0."""
Shares = list[dict[str, int]]
"""For each member, how many GPUs it has on which nodes."""


def relabel_nodes(shares: Shares, nodes: Mapping[str, int], had: Sequence[frozenset[Gpu]]) -> Shares:
    """The shares with nodes of one size exchanged, so that members stay on their nodes."""
    stays: dict[tuple[str, str], int] = {}
    for own, before in zip(shares, had, strict=True):
        present = Counter(node for node, _ in before)
        for name, count in own.items():
            for other, number in present.items():
                stays[name, other] = stays.get((name, other), 0) + min(count, number)
    places = {name: place for place, name in enumerate(nodes)}
    names: dict[str, str] = {}
    given_names: set[str] = set()
    pairs = sorted(
        (-count, places[name], name != other, name, other) for (name, other), count in stays.items() if other in nodes
    )
    for *_, name, other in pairs:
        if nodes[name] == nodes[other] and name not in names and other not in given_names:
            names[name] = other
            given_names.add(other)
    others = sorted(nodes)
    for name, size in nodes.items():
        if name not in names:
            free = (other for other in others if other not in given_names and nodes[other] == size)
            names[name] = name if name not in given_names else next(free)
            given_names.add(names[name])
    return [{names[name]: count for name, count in own.items()} for own in shares]


def number_gpus(shares: Shares, nodes: Mapping[str, int], had: Sequence[frozenset[Gpu]]) -> tuple[frozenset[Gpu], ...]:
    """Numbers of GPUs: members keep those that they have, and the others take what is left, from the first."""
    free = {name: dict.fromkeys(range(size)) for name, size in nodes.items()}
    own_gpus: list[list[Gpu]] = []
    for own, before in zip(shares, had, strict=True):
        mine = [
            (name, number)
            for name, count in own.items()
            for number in sorted(number for node, number in before if node == name and number in free[name])[:count]
        ]
        for name, number in mine:
            del free[name][number]
        own_gpus.append(mine)
    for own, mine in zip(shares, own_gpus, strict=True):
        for name, count in own.items():
            missing = count - sum(node == name for node, _ in mine)
            for number in tuple(free[name])[:missing]:
                mine.append((name, number))
                del free[name][number]
    return tuple(frozenset(mine) for mine in own_gpus)
