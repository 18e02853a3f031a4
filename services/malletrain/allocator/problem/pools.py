"""Problems on several pools of nodes: no job spans two pools, so each pool's part is solved by itself. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem, Assignment, JobDemand
from malletrain.allocator.problem.forward_time import NOTHING_OBSERVED, ForwardTime, ObservedChanges, start_seconds
from malletrain.allocator.problem.group_table import largest_group, requires_group
from malletrain.allocator.problem.kinds import restricted, suitable_nodes

_WORST_FIRST = ("UNCHANGED", "FEASIBLE", "OPTIMAL")


def split(
    problem: AllocationProblem,
    pool_of: Mapping[str, str],
    forward: ForwardTime,
    changes: ObservedChanges = NOTHING_OBSERVED,
) -> tuple[AllocationProblem, ...]:
    """Split a problem into one part per pool, each with its own T_fwd.

    A job stays in the pool that has most of its nodes. A job without nodes goes to the pool with the most nodes per
    job, among the pools that are large enough for it; the next plan may choose another one while it has no nodes. Of a
    job that not all nodes suit, only the suitable ones count, and of one whose nodes must be in one group, those of the
    largest group.
    An owner's limit is divided among the pools in which it has jobs: each pool keeps what the owner holds there as far
    as the limit reaches, and the rest is divided in proportion to what its jobs there could use besides.

    Args:
        problem: A valid problem.
        pool_of: Pool of each node; nodes that are missing are in the pool "".
        forward: How T_fwd is computed.
        changes: How often jobs have changed their scale, in all pools.

    Returns:
        The parts; the problem itself if there is only one pool.
    """
    if not pool_of:
        return (problem,)
    members: dict[str, list[str]] = {}
    for node in problem.nodes:
        members.setdefault(pool_of.get(node, ""), []).append(node)
    if len(members) < 2:
        return (problem,)
    homes = _homes(problem, members, pool_of)
    limits = {owner: _shares(problem, owner, members, homes) for owner in problem.owner_limits}
    return tuple(
        _part(
            problem, pool, nodes, homes, (forward, changes), {owner: shares[pool] for owner, shares in limits.items()}
        )
        for pool, nodes in members.items()
    )


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
    problem: AllocationProblem, members: Mapping[str, Sequence[str]], pool_of: Mapping[str, str]
) -> dict[str, str]:
    homes: dict[str, str] = {}
    for job in problem.jobs:
        if job.current_nodes:
            # The pool with most of its nodes; the first one among equals.
            homes[job.id] = Counter(pool_of.get(node, "") for node in job.current_nodes).most_common(1)[0][0]
    crowd = Counter(homes.values())
    sizes = {pool: len(nodes) for pool, nodes in members.items()}
    # Those first that have the fewest pools to choose from.
    for job in sorted(problem.jobs, key=lambda job: not (job.unsuitable_kinds or requires_group(job))):
        if job.id not in homes:
            chooses = job.unsuitable_kinds or requires_group(job)
            usable = _suitable(problem, job, members) if chooses else sizes
            roomy = [pool for pool, count in usable.items() if count >= job.min_nodes] or list(members)
            homes[job.id] = max(roomy, key=lambda pool: usable[pool] / (crowd[pool] + 1))
            crowd[homes[job.id]] += 1
    return homes


def _suitable(problem: AllocationProblem, job: JobDemand, members: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many nodes of each pool suit a job; of one that must be in one group those of the pool's largest."""
    if requires_group(job):
        return {pool: largest_group(problem, job, nodes) for pool, nodes in members.items()}
    usable = suitable_nodes(problem, job)
    return {pool: sum(node in usable for node in nodes) for pool, nodes in members.items()}


def _shares(
    problem: AllocationProblem, owner: str, members: Mapping[str, Sequence[str]], homes: Mapping[str, str]
) -> dict[str, int]:
    """An owner's limit divided among the pools, in nodes; their sum is at most the limit."""
    owned = [job for job in problem.jobs if job.owner == owner]
    held, usable = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    for job in owned:
        pool = homes[job.id]
        held[pool] += len(job.current_nodes)
        usable[pool] += min(job.max_nodes, job.curve[-1].nodes)
    held = _divide(problem.owner_limits[owner], held)
    more = {pool: max(0, min(usable[pool], len(nodes)) - held[pool]) for pool, nodes in members.items()}
    rest = _divide(problem.owner_limits[owner] - sum(held.values()), more)
    return {pool: held[pool] + rest[pool] for pool in members}


def _divide(amount: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Whole numbers of at most what is wanted, in proportion to it if the amount is too small for all."""
    total = sum(wanted.values())
    if total <= amount:
        return dict(wanted)
    parts = {name: amount * count // total for name, count in wanted.items()}
    by_remainder = sorted(wanted, key=lambda name: -(amount * wanted[name] % total))
    for name in by_remainder[: amount - sum(parts.values())]:
        parts[name] += 1
    return parts


def _part(
    problem: AllocationProblem,
    pool: str,
    nodes: Sequence[str],
    homes: Mapping[str, str],
    forward: tuple[ForwardTime, ObservedChanges],
    limits: Mapping[str, int],
) -> AllocationProblem:
    inside = frozenset(nodes)
    stays = {node: stay for node, stay in problem.expected_stay_seconds.items() if node in inside}
    jobs = tuple(
        replace(job, current_nodes=tuple(node for node in job.current_nodes if node in inside))
        for job in problem.jobs
        if homes[job.id] == pool
    )
    time, changes = forward
    return replace(
        problem,
        nodes=tuple(nodes),
        jobs=jobs,
        forward_seconds=time.of(
            stays.values(), changes, [start_seconds(job.scale_up_seconds, job.boot_seconds) for job in jobs]
        ),
        expected_stay_seconds=stays,
        owner_limits=limits,
        kinds=restricted(problem.kinds, inside),
    )
