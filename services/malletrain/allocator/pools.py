"""Problems on several pools of nodes: no job spans two pools, so each pool's part is solved by itself. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from malletrain.allocator.forward_time import ForwardTime
from malletrain.allocator.problem import Allocation, AllocationProblem, Assignment, JobDemand

_WORST_FIRST = ("UNCHANGED", "FEASIBLE", "OPTIMAL")


def split(
    problem: AllocationProblem, pool_of: Mapping[str, str], forward: ForwardTime
) -> tuple[AllocationProblem, ...]:
    """Split a problem into one part per pool, each with its own T_fwd.

    A job stays in the pool that has most of its nodes. A job without nodes goes to the pool with the most nodes per
    job, among the pools that are large enough for it; the next plan may choose another one while it has no nodes.

    Args:
        problem: A valid problem.
        pool_of: Pool of each node; nodes that are missing are in the pool "".
        forward: How T_fwd is computed.

    Returns:
        The parts; the problem itself if there is only one pool.
    """
    members: dict[str, list[str]] = {}
    for node in problem.nodes:
        members.setdefault(pool_of.get(node, ""), []).append(node)
    if len(members) < 2:
        return (problem,)
    homes = _homes(problem.jobs, members, pool_of)
    return tuple(_part(problem, pool, nodes, homes, forward) for pool, nodes in members.items())


def join(problem: AllocationProblem, answers: Sequence[Allocation]) -> Allocation:
    """The solution of a problem from the solutions of its parts, of which there is at least one."""
    if len(answers) == 1:
        return answers[0]
    nodes = {entry.job_id: entry.nodes for answer in answers for entry in answer.assignments}
    return Allocation(
        objective=sum(answer.objective for answer in answers),
        status=min((answer.status for answer in answers), key=_WORST_FIRST.index),
        solver="+".join(dict.fromkeys(answer.solver for answer in answers)),
        solve_seconds=sum(answer.solve_seconds for answer in answers),
        assignments=tuple(Assignment(job.id, nodes[job.id]) for job in problem.jobs),
        fallback_reason="; ".join(
            dict.fromkeys(answer.fallback_reason for answer in answers if answer.fallback_reason)
        ),
    )


def _homes(
    jobs: Sequence[JobDemand], members: Mapping[str, Sequence[str]], pool_of: Mapping[str, str]
) -> dict[str, str]:
    homes: dict[str, str] = {}
    for job in jobs:
        if job.current_nodes:
            # The pool with most of its nodes; the first one among equals.
            homes[job.id] = Counter(pool_of.get(node, "") for node in job.current_nodes).most_common(1)[0][0]
    crowd = Counter(homes.values())
    for job in jobs:
        if job.id not in homes:
            roomy = [pool for pool, nodes in members.items() if len(nodes) >= job.min_nodes] or list(members)
            homes[job.id] = max(roomy, key=lambda pool: len(members[pool]) / (crowd[pool] + 1))
            crowd[homes[job.id]] += 1
    return homes


def _part(
    problem: AllocationProblem, pool: str, nodes: Sequence[str], homes: Mapping[str, str], forward: ForwardTime
) -> AllocationProblem:
    inside = frozenset(nodes)
    stays = {node: stay for node, stay in problem.expected_stay_seconds.items() if node in inside}
    jobs = tuple(
        replace(job, current_nodes=tuple(node for node in job.current_nodes if node in inside))
        for job in problem.jobs
        if homes[job.id] == pool
    )
    return replace(
        problem,
        nodes=tuple(nodes),
        jobs=jobs,
        forward_seconds=forward.of(stays.values()),
        expected_stay_seconds=stays,
    )
