"""Placement: which nodes each job gets, given how many. No job migrates (BFTrainer, Eq. 6). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from malletrain.allocator.problem.allocation_problem import AllocationProblem, Assignment

Rank = Callable[[str], tuple[float, int]]
"""Sort key of a node: nodes that are expected to stay longer come first. No two nodes have the same key."""


def place(problem: AllocationProblem, counts: Sequence[int]) -> tuple[Assignment, ...]:
    """Choose the nodes of every job.

    A shrinking job gives up the nodes that are expected to leave first. Growing jobs then take, in the order of the
    problem, the free nodes that are expected to stay longest. The problem's order of nodes breaks ties.

    Args:
        problem: A valid problem.
        counts: Number of nodes of each job; their sum is at most the number of nodes.

    Returns:
        The nodes of every job, in the problem's order of jobs and nodes.
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
    """Choose the nodes of the jobs whose count changes; the other jobs keep theirs.

    Args:
        held: Present nodes of each job.
        counts: New number of nodes of each job; their sum is at most the number of nodes, free ones included.
        free: Nodes that no job holds.
        rank: Sort key of a node; called only for free nodes and nodes of jobs that shrink.

    Returns:
        New nodes of each changed job, by the job's index.
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
