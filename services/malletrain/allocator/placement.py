"""Which nodes: from counts to a map, without migration (BFTrainer, Eq. 6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from malletrain.allocator.problem import AllocationProblem, Assignment

Rank = Callable[[str], tuple[float, int]]
"""Nodes with a lower rank are expected to stay longer; no two have the same."""


def place(problem: AllocationProblem, counts: Sequence[int]) -> tuple[Assignment, ...]:
    """Choose the nodes of every job.

    A shrinking job gives up the nodes that are expected to leave first; a growing job takes those free nodes that are
    expected to stay longest, earlier jobs first. Equal stays go by the problem's order of nodes.

    Args:
        problem: A valid problem.
        counts: Nodes per job; their sum is at most the number of nodes.
    """
    order = {node: index for index, node in enumerate(problem.nodes)}
    stays = problem.expected_stay_seconds
    held = [job.current_nodes for job in problem.jobs]
    taken = {node for nodes in held for node in nodes}
    free = [node for node in problem.nodes if node not in taken]
    changed = rearrange(held, counts, free, lambda node: (-stays.get(node, 0.0), order[node]))
    return tuple(
        Assignment(job.id, tuple(sorted(changed.get(index, held[index]), key=order.__getitem__)))
        for index, job in enumerate(problem.jobs)
    )


def rearrange(
    held: Sequence[Collection[str]], counts: Sequence[int], free: Iterable[str], rank: Rank
) -> dict[int, list[str]]:
    """New nodes for the jobs whose count changes; the others keep theirs, and cost nothing here.

    Args:
        held: Nodes of each job.
        counts: Nodes that each job is to have; their sum is at most the number of nodes, free ones included.
        free: Nodes that no job holds.
        rank: Ranks a node; called only for nodes that are free or of a job that shrinks.

    Returns:
        The nodes of each changed job, by its index.
    """
    changed: dict[int, list[str]] = {}
    pool = list(free)
    growing = []
    for index, (nodes, count) in enumerate(zip(held, counts, strict=True)):
        if count < len(nodes):
            best_first = sorted(nodes, key=rank)
            changed[index] = best_first[:count]
            pool += best_first[count:]
        elif count > len(nodes):
            growing.append(index)
    if len(growing) > 1 or (growing and counts[growing[0]] - len(held[growing[0]]) < len(pool)):
        pool.sort(key=rank)
    first = 0
    for index in growing:
        last = first + counts[index] - len(held[index])
        changed[index] = [*held[index], *pool[first:last]]
        first = last
    return changed
