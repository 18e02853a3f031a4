"""Which GPUs each member of a flotilla gets: getGPUAssignment (Guan et al., MLSys 2020, Algorithms 3 and 4).

GPU j is on node j // G. Members get consecutive GPUs, and should be on few nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, permutations

MAX_ORDERS = 1024
_PERMUTED = 7
"""Of so many members there are more orders than that: 5040."""
_DIGITS = 9
"""Scores are compared as rounded to 1e-9: those of equal assignments differ by the order of additions."""


@dataclass(frozen=True, slots=True)
class GpuAssignment:
    """The GPUs of each member of a flotilla.

    Attributes:
        gpus: Numbers of each member's GPUs, ascending, in the order of the flotilla.
        score: Sum of nodes over GPUs of all members; the smaller, the fewer nodes per GPU.
        orders_tried: How many orders of members without a partner were compared.
    """

    gpus: tuple[tuple[int, ...], ...]
    score: float
    orders_tried: int


def assign_gpus(counts: Sequence[int], gpus_per_node: int) -> GpuAssignment:
    """Lay members out one after the other: whole nodes, then pairs that fill nodes, then the rest in the best order.

    Args:
        counts: GPUs of each member, at least 1 each.
        gpus_per_node: GPUs of a node.
    """
    settled, waiting = _pairs(counts, gpus_per_node)
    # The first orders differ in their last members only.
    head, tail = waiting[:-_PERMUTED], waiting[-_PERMUTED:]
    start = sum(counts[member] for member in settled)
    before = _score(counts, head, start, gpus_per_node)
    start += sum(counts[member] for member in head)
    best: tuple[int, ...] = ()
    least, tried = float("inf"), 0
    if waiting:
        for order in islice(permutations(tail), MAX_ORDERS):
            tried += 1
            score = round(_score(counts, order, start, gpus_per_node, before), _DIGITS)
            if score < least:
                best, least = order, score
    starts = _starts(counts, (*settled, *head, *best))
    spans = tuple(tuple(range(starts[member], starts[member] + count)) for member, count in enumerate(counts))
    return GpuAssignment(spans, assignment_score(spans, gpus_per_node), tried)


def assignment_score(gpus: Sequence[Sequence[int]], gpus_per_node: int) -> float:
    """Sum of nodes over GPUs (published Eq. 4), of the numbers of each member's GPUs."""
    return sum(len({gpu // gpus_per_node for gpu in own}) / len(own) for own in gpus)


def _pairs(counts: Sequence[int], gpus_per_node: int) -> tuple[list[int], list[int]]:
    """Members that fill whole nodes, alone or with a partner, in their order of placement; and the others."""
    settled = [member for member, count in enumerate(counts) if count % gpus_per_node == 0]
    waiting: list[int] = []
    for member, count in enumerate(counts):
        if count % gpus_per_node == 0:
            continue
        partner = next((other for other in waiting if (counts[other] + count) % gpus_per_node == 0), None)
        if partner is None:
            waiting.append(member)
        else:
            waiting.remove(partner)
            settled += [member, partner]
    return settled, waiting


def _score(counts: Sequence[int], order: Sequence[int], start: int, gpus_per_node: int, score: float = 0.0) -> float:
    """A score, and nodes over GPUs of more members from a GPU on."""
    for member in order:
        own = counts[member]
        end = start + own
        score += ((end - 1) // gpus_per_node - start // gpus_per_node + 1) / own
        start = end
    return score


def _starts(counts: Sequence[int], order: Sequence[int]) -> dict[int, int]:
    starts, place = {}, 0
    for member in order:
        starts[member] = place
        place += counts[member]
    return starts
