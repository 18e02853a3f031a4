"""Several pools of nodes: no job spans two of them. Each pool's part of a problem is solved by itself. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from malletrain.allocator.horizon import Forward
from malletrain.allocator.problem import Allocation, AllocationProblem, Assignment, JobDemand
from malletrain.allocator.worth import metric_scale, permitted_sizes, rates

_START_SECONDS = 30.0
"""What a start in another pool costs besides R_up: all workers boot, and the job goes on from its checkpoint."""
_WORST_FIRST = ("UNCHANGED", "FEASIBLE", "OPTIMAL")


def split(problem: AllocationProblem, pool_of: Mapping[str, str], forward: Forward) -> tuple[AllocationProblem, ...]:
    """One problem per pool, with its own T_fwd; the problem itself where there is only one pool.

    A job stays in the pool that has most of its nodes. One without nodes goes where it may get most: to the pool with
    the most nodes per job that it is large enough for; it is free to go elsewhere as long as it has none.

    Args:
        problem: A valid problem.
        pool_of: Pool of each node; one that is not named is in the pool "".
        forward: How to come by T_fwd.
    """
    members = _members(problem, pool_of)
    if len(members) < 2:
        return (problem,)
    homes = _homes(problem.jobs, members, pool_of)
    return tuple(_part(problem, pool, nodes, homes, forward) for pool, nodes in members.items())


def mover(
    problem: AllocationProblem, pool_of: Mapping[str, str], forward: Forward, staying: Collection[str] = ()
) -> str | None:
    """The job that had better give up its nodes, to start again in a pool that no job uses; None where none had.

    One that would be placed there if it had no nodes (so the next plan does so), that others share its pool with, and
    that is worth more there within T_fwd than what the new start costs. Its nodes go to the others, if they want any.

    Args:
        problem: A valid problem.
        pool_of: Pool of each node; one that is not named is in the pool "".
        forward: How to come by T_fwd.
        staying: Jobs that are not to be moved.
    """
    members = _members(problem, pool_of)
    homes = _homes(problem.jobs, members, pool_of) if len(members) > 1 else {}
    crowd = Counter(homes.values())
    gains: dict[str, float] = {}
    for job in problem.jobs:
        home = homes.get(job.id, "")
        if not job.current_nodes or job.id in staying or crowd[home] < 2:
            continue
        target = _roomiest(job, members, crowd - Counter([home]))
        if not crowd[target]:
            others = [other for other in problem.jobs if homes[other.id] == home and other.id != job.id]
            wanted = any(_largest(other, members[home]) > len(other.current_nodes) for other in others)
            seconds = forward.of(problem.expected_stay_seconds.get(node, 0.0) for node in members[target])
            gains[job.id] = _gain(job, problem, members[target], seconds, freed=wanted)
    best = max(gains, key=gains.__getitem__, default=None)
    return best if best is not None and gains[best] > 0 else None


def _gain(job: JobDemand, problem: AllocationProblem, nodes: Sequence[str], seconds: float, *, freed: bool) -> float:
    """What it is worth to start again on other nodes; `freed`: what it leaves is put to use."""
    here, there = rates(job, [len(job.current_nodes), _largest(job, nodes)])
    new = there if freed else there - here
    scale = metric_scale(job, problem.objective_metric)
    return float(scale * (seconds * new - here * (job.scale_up_seconds + _START_SECONDS)))


def _largest(job: JobDemand, nodes: Sequence[str]) -> int:
    return int(permitted_sizes(job, len(nodes))[-1])


def _members(problem: AllocationProblem, pool_of: Mapping[str, str]) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for node in problem.nodes:
        members.setdefault(pool_of.get(node, ""), []).append(node)
    return members


def join(problem: AllocationProblem, answers: Sequence[Allocation]) -> Allocation:
    """The answer to the problem from those to its parts; at least one. A job in none of them gets nothing."""
    if len(answers) == 1:
        return answers[0]
    nodes = {entry.job_id: entry.nodes for answer in answers for entry in answer.assignments}
    return Allocation(
        objective=sum(answer.objective for answer in answers),
        status=min((answer.status for answer in answers), key=_WORST_FIRST.index),
        solver="+".join(dict.fromkeys(answer.solver for answer in answers)),
        solve_seconds=sum(answer.solve_seconds for answer in answers),
        assignments=tuple(Assignment(job.id, nodes.get(job.id, ())) for job in problem.jobs),
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
            # The largest share; of equal ones the first.
            homes[job.id] = Counter(pool_of.get(node, "") for node in job.current_nodes).most_common(1)[0][0]
    crowd = Counter(homes.values())
    for job in jobs:
        if job.id not in homes:
            homes[job.id] = _roomiest(job, members, crowd)
            crowd[homes[job.id]] += 1
    return homes


def _roomiest(job: JobDemand, members: Mapping[str, Sequence[str]], crowd: Mapping[str, int]) -> str:
    roomy = [pool for pool, nodes in members.items() if len(nodes) >= job.min_nodes] or list(members)
    return max(roomy, key=lambda pool: len(members[pool]) / (crowd.get(pool, 0) + 1))


def _part(
    problem: AllocationProblem, pool: str, nodes: Sequence[str], homes: Mapping[str, str], forward: Forward
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
