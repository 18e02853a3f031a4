"""From counts to nodes, without migration (BFTrainer Eq. 6): a job only gains or only loses nodes."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.allocator.problem import AllocationProblem, Assignment


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
    # sorted() keeps the problem's order among equal stays.
    longest_first = sorted(problem.nodes, key=lambda node: -stays.get(node, 0.0)) if stays else problem.nodes
    rank = {node: index for index, node in enumerate(longest_first)}
    kept = [
        sorted(job.current_nodes, key=rank.__getitem__)[:count] for job, count in zip(problem.jobs, counts, strict=True)
    ]
    held = {node for nodes in kept for node in nodes}
    free = [node for node in longest_first if node not in held]
    first = 0
    assignments = []
    for job, count, nodes in zip(problem.jobs, counts, kept, strict=True):
        missing = count - len(nodes)
        taken = free[first : first + missing]
        first += missing
        assignments.append(Assignment(job.id, tuple(sorted((*nodes, *taken), key=order.__getitem__))))
    return tuple(assignments)
