"""Which GPUs of nodes that may differ in size: best fit with gaps, and as few workers moved as possible.

Candidates are the assignment as it is, the members one after the other as in `assignment`, and best fit. The least
score counts, then the fewest workers that have to be started anew: a member whose GPUs stay goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.fleet.assignment import assign_gpus
from malletrain.fleet.gpu_names import Gpu, Shares, named, relabelled

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
    found = [named(relabelled(one, nodes, had), nodes, had) for one in shares]
    there = all(number < nodes.get(node, 0) for own in had for node, number in own)
    if there and all(len(own) == count for own, count in zip(had, counts, strict=True)):
        found.append(had)
    rated = [_rated(gpus, had) for gpus in found]
    return min(rated, key=lambda placement: (round(placement.score, _DIGITS), placement.moved))


def _rated(gpus: tuple[frozenset[Gpu], ...], had: Sequence[frozenset[Gpu]]) -> GpuPlacement:
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
        left = counts[member]
        known = {node for node, _ in had[member]} if had else set()
        while left:
            wide = [name for name, room in free.items() if room >= left]
            name = (
                min(wide, key=lambda node: (node not in known, free[node]))
                if wide
                else max(free, key=lambda node: (free[node], node in known))
            )
            taken = min(left, free[name])
            shares[member][name] = taken
            free[name] -= taken
            left -= taken
    return shares
