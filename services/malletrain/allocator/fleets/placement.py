"""Which GPUs each member of a fleet gets, given how many. Pure.

A member whose number of GPUs stays keeps them and goes on. The others stall anyway: they keep what they have, too,
unless another placement needs fewer nodes per GPU (`malletrain.fleet.placement`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from malletrain.fleet.placement import place

Gpu = tuple[str, int]
"""Name of a node, and number of a GPU on it."""
_DIGITS = 9


def place_members(
    counts: Mapping[str, int], usable: Mapping[str, Sequence[int]], held: Mapping[str, frozenset[Gpu]]
) -> dict[str, frozenset[Gpu]]:
    """Place members on GPUs.

    A member for which there are not enough free GPUs keeps what it has: some are just being released.

    Args:
        counts: How many GPUs each member should have, at least 1.
        usable: Numbers of the GPUs of each node that members may have, in the order of preference.
        held: GPUs that members have now, each in one member at most, on nodes that may have left.

    Returns:
        GPUs of each member that gets any.
    """
    there = {(node, number) for node, numbers in usable.items() for number in numbers}
    own = {member: held.get(member, frozenset()) & there for member in counts}
    fixed = {
        member: own[member]
        for member, count in counts.items()
        if len(own[member]) == count and own[member] == held[member]
    }
    rest = {member: count for member, count in counts.items() if member not in fixed}
    if not rest:
        return fixed
    fixed_gpus = {gpu for gpus in fixed.values() for gpu in gpus}
    free = {
        node: [number for number in numbers if (node, number) not in fixed_gpus] for node, numbers in usable.items()
    }
    placed = _grow(rest, free, {member: _staying_gpus(own[member], count) for member, count in rest.items()})
    anew = _anew(rest, free, own)
    if anew is not None and _score(anew) < _score(placed):
        placed = anew
    return fixed | placed


def _score(gpus: Mapping[str, frozenset[Gpu]]) -> float:
    """Sum of nodes over GPUs of the members (published Eq. 4)."""
    return round(sum(len({node for node, _ in own}) / len(own) for own in gpus.values()), _DIGITS)


def _staying_gpus(own: frozenset[Gpu], count: int) -> frozenset[Gpu]:
    """What a member keeps of its GPUs: those on the nodes where it has most."""
    crowd = Counter(node for node, _ in own)
    return frozenset(sorted(own, key=lambda gpu: (-crowd[gpu[0]], gpu))[:count])


def _anew(
    counts: Mapping[str, int], usable: Mapping[str, Sequence[int]], own: Mapping[str, frozenset[Gpu]]
) -> dict[str, frozenset[Gpu]] | None:
    """The placement with the fewest nodes per GPU; None where there are not enough GPUs for all."""
    sizes = {node: len(numbers) for node, numbers in usable.items() if numbers}
    if sum(counts.values()) > sum(sizes.values()):
        return None
    had = [frozenset((node, usable[node].index(number)) for node, number in own[member]) for member in counts]
    placement = place(list(counts.values()), sizes, had)
    return {
        member: frozenset((node, usable[node][number]) for node, number in gpus)
        for member, gpus in zip(counts, placement.gpus, strict=True)
    }


def _grow(
    counts: Mapping[str, int], usable: Mapping[str, Sequence[int]], staying: Mapping[str, frozenset[Gpu]]
) -> dict[str, frozenset[Gpu]]:
    """What members keep, and what they lack of the free GPUs, large members first."""
    staying_gpus = {gpu for own in staying.values() for gpu in own}
    free = {
        node: [number for number in numbers if (node, number) not in staying_gpus] for node, numbers in usable.items()
    }
    placed = {member: own for member, own in staying.items() if own}
    for member in sorted(counts, key=lambda name: -counts[name]):
        missing = counts[member] - len(staying[member])
        if 0 < missing <= sum(map(len, free.values())):
            placed[member] = staying[member] | _take_free(free, missing, {node for node, _ in staying[member]})
    return placed


def _take_free(free: dict[str, list[int]], missing: int, known: set[str]) -> frozenset[Gpu]:
    """Take free GPUs: on a node of the member's, else on the one with the least room for all, or the emptiest ones."""
    gpus: list[Gpu] = []
    while missing:
        wide = [node for node, numbers in free.items() if len(numbers) >= missing]
        node = (
            min(wide, key=lambda name: (name not in known, len(free[name])))
            if wide
            else max(free, key=lambda name: (name in known and bool(free[name]), len(free[name])))
        )
        numbers = free[node][:missing]
        del free[node][: len(numbers)]
        gpus += [(node, number) for number in numbers]
        missing -= len(numbers)
    return frozenset(gpus)


def place_whole_nodes(
    counts: Mapping[str, int], usable: Mapping[str, Sequence[int]], held: Mapping[str, frozenset[Gpu]]
) -> dict[str, frozenset[Gpu]]:
    """Place members on whole nodes: each gets nodes, those that it has first, until it has its number of GPUs.

    Args:
        counts: How many GPUs each member should have, at least 1.
        usable: As for `place_members`.
        held: As for `place_members`.

    Returns:
        GPUs of each member that gets any.
    """
    owner = {node: member for member in counts for node, _ in held.get(member, frozenset())}
    free = [node for node, numbers in usable.items() if node not in owner and numbers]
    placed = {}
    for member, count in counts.items():
        gpus: list[Gpu] = []
        nodes = [node for node in usable if owner.get(node) == member]
        while len(gpus) < count and (nodes or free):
            node = nodes.pop(0) if nodes else free.pop(0)
            gpus += [(node, number) for number in usable[node]]
        if gpus:
            placed[member] = frozenset(gpus[:count])
    return placed
