"""Problems on several pools of nodes: no job spans two pools, so each pool's part is solved by itself. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from malletrain.allocator.problem.allocation_problem import (
    Allocation,
    AllocationProblem,
    Assignment,
    CostModel,
    JobDemand,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import (
    MAX_BOOT,
    NOTHING_OBSERVED,
    ForwardTime,
    ObservedChanges,
    start_seconds,
)
from malletrain.allocator.problem.group_table import most_in_groups, requires_group
from malletrain.allocator.problem.kinds import restrict_kinds, suitable_nodes


@dataclass(frozen=True)
class PoolTerms:
    """What an operator chooses for one pool. None: what holds for all pools.

    Attributes:
        forward: Where T_fwd comes from.
        objective_metric: How progress is measured.
        max_nodes: Most nodes of all jobs together.
        max_nodes_per_owner: Most nodes of all jobs of an owner together, within what its limit leaves for the pool.
        max_parallel: Most jobs that take part in the pool's plans at the same time.
    """

    forward: ForwardTime | None = None
    objective_metric: ObjectiveMetric | None = None
    max_nodes: int | None = None
    max_nodes_per_owner: int | None = None
    max_parallel: int | None = None

    def most(self, nodes: int) -> int:
        """How many of so many nodes jobs may have together."""
        return nodes if self.max_nodes is None else min(nodes, self.max_nodes)

    def has_place(self, jobs: int) -> bool:
        """Whether one more job may take part beside so many."""
        return self.max_parallel is None or jobs < self.max_parallel


@dataclass(frozen=True)
class PlannerOptions:
    """The operator's choices.

    Attributes:
        forward: Where T_fwd comes from.
        cost_model: How rescales are charged.
        objective_metric: How progress is measured.
        span_pools: Whether a job may have nodes of several pools at once.
        max_nodes_per_owner: Most nodes of all jobs of an owner together; 0: no limit.
        avoid_slow_nodes: Whether jobs of more than one node are given no nodes that count as slow.
        pools: What differs in single pools, by their names (`terms_of`); nothing where jobs may span pools.
    """

    forward: ForwardTime
    cost_model: CostModel
    objective_metric: ObjectiveMetric
    span_pools: bool = False
    max_nodes_per_owner: int = 0
    avoid_slow_nodes: bool = False
    pools: Mapping[str, PoolTerms] = field(default_factory=dict)

    @property
    def pools_limit_owners(self) -> bool:
        """Whether owners have a limit in some pool."""
        return any(terms.max_nodes_per_owner is not None for terms in self.pools.values())


PoolRules = Mapping[str, PoolTerms]
"""By name of a pool, or of a partition for all its pools that are not named themselves."""
_NO_TERMS = PoolTerms()


def terms_of(rules: PoolRules, pool: str) -> PoolTerms:
    """What holds for a pool such as `main/a100x4`: what is said of it, else of its partition `main`."""
    while pool not in rules and "/" in pool:
        pool = pool.rpartition("/")[0]
    return rules.get(pool, _NO_TERMS)


_WORST_FIRST = ("UNCHANGED", "FEASIBLE", "OPTIMAL")


def split(
    problem: AllocationProblem,
    pool_of: Mapping[str, str],
    forward: ForwardTime,
    changes: ObservedChanges = NOTHING_OBSERVED,
    rules: PoolRules = MappingProxyType({}),
) -> tuple[AllocationProblem, ...]:
    """Split a problem into one part per pool, each with its own T_fwd, and with the terms that hold for it.

    A job stays in the pool that has most of its nodes. A job without nodes goes to the pool with the most nodes per
    job, among the pools that are large enough for it; the next plan may choose another one while it has no nodes. Of a
    job that not all nodes suit, only the suitable ones count, and of one whose nodes must be in one group, those of the
    largest group.
    Where a pool has places for so many jobs only, those with nodes there keep theirs, and the others get what is left,
    all in the order of their submission. A job that gets no place is in no part. One that could have its least nodes
    in no pool takes no place.
    An owner's limit is divided among the pools in which it has jobs: each pool keeps what the owner holds there as far
    as the limit reaches, and the rest is divided in proportion to what its jobs there could use besides.

    Args:
        problem: A valid problem.
        pool_of: Pool of each node; nodes that are missing are in the pool "".
        forward: How T_fwd is computed.
        changes: How often jobs have changed their scale, in all pools.
        rules: What the operator has chosen for single pools.

    Returns:
        The parts; the problem itself if there is only one pool, which keeps to no `max_parallel`.
    """
    if not pool_of:
        return (problem,)
    members: dict[str, list[str]] = {}
    for node in problem.nodes:
        members.setdefault(pool_of.get(node, ""), []).append(node)
    if len(members) < 2:
        return (problem,)
    terms = {pool: terms_of(rules, pool) for pool in members}
    homes = _homes(problem, members, pool_of, terms)
    limits = {owner: _shares(problem, owner, members, homes, terms) for owner in problem.owner_limits}
    return tuple(
        _part(
            problem,
            pool,
            nodes,
            homes,
            (forward, changes, terms[pool]),
            {owner: shares[pool] for owner, shares in limits.items()},
        )
        for pool, nodes in members.items()
    )


def join(problem: AllocationProblem, answers: Sequence[Allocation]) -> Allocation:
    """The solution of a problem from the solutions of its parts, of which there is at least one."""
    if len(answers) == 1 and len(answers[0].assignments) == len(problem.jobs):
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


def within_places(problem: AllocationProblem, max_jobs: int | None) -> AllocationProblem:
    """The problem of a pool without the jobs for which it has no place.

    Args:
        problem: A valid problem, all of one pool.
        max_jobs: Most jobs that take part; None: no limit.
    """
    if max_jobs is None:
        return problem
    ranked = sorted(problem.jobs, key=lambda job: not job.current_nodes)
    roomy = _suitable_here(problem, [job for job in ranked if not job.current_nodes])
    placed = {job.id for job in [job for job in ranked if job.current_nodes or job.id in roomy][:max_jobs]}
    hopeless = {job.id for job in problem.jobs if not job.current_nodes and job.id not in roomy}
    return replace(problem, jobs=tuple(job for job in problem.jobs if job.id in placed | hopeless))


def _suitable_here(problem: AllocationProblem, jobs: Sequence[JobDemand]) -> set[str]:
    """Which jobs could have their least nodes if they were alone."""
    everywhere = {"": problem.nodes}
    return {job.id for job in jobs if min(_suitable(problem, job, everywhere)[""], problem.capacity) >= job.min_nodes}


def _homes(
    problem: AllocationProblem,
    members: Mapping[str, Sequence[str]],
    pool_of: Mapping[str, str],
    terms: Mapping[str, PoolTerms],
) -> dict[str, str]:
    """The pool of each job that takes part."""
    homes: dict[str, str] = {}
    crowd: Counter[str] = Counter()
    for job in problem.jobs:
        if job.current_nodes:
            # The pool with most of its nodes; the first one among equals.
            pool = Counter(pool_of.get(node, "") for node in job.current_nodes).most_common(1)[0][0]
            if terms[pool].has_place(crowd[pool]):
                homes[job.id] = pool
                crowd[pool] += 1
    sizes = {pool: terms[pool].most(len(nodes)) for pool, nodes in members.items()}
    # Those first that have the fewest pools to choose from.
    limited = any(terms[pool].max_parallel is not None for pool in members)
    # Places go by the order of submission alone.
    for job in sorted(problem.jobs, key=lambda job: not limited and not (job.unsuitable_kinds or requires_group(job))):
        if not job.current_nodes:
            chooses = job.unsuitable_kinds or requires_group(job)
            suitable = _suitable(problem, job, members) if chooses else sizes
            usable = {pool: terms[pool].most(count) for pool, count in suitable.items()}
            roomy = [pool for pool, count in usable.items() if count >= job.min_nodes]
            open_to = [pool for pool in roomy or members if not roomy or terms[pool].has_place(crowd[pool])]
            if open_to:
                homes[job.id] = max(open_to, key=lambda pool: usable[pool] / (crowd[pool] + 1))
                # Where places are limited, what can't have nodes takes none.
                crowd[homes[job.id]] += 1 if roomy or not limited else 0
    return homes


def _suitable(problem: AllocationProblem, job: JobDemand, members: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many nodes of each pool a job could have, by its needs and by the groups that it must be in."""
    if requires_group(job):
        return {pool: most_in_groups(problem, job, nodes) for pool, nodes in members.items()}
    usable = suitable_nodes(problem, job)
    return {pool: sum(node in usable for node in nodes) for pool, nodes in members.items()}


def _shares(
    problem: AllocationProblem,
    owner: str,
    members: Mapping[str, Sequence[str]],
    homes: Mapping[str, str],
    terms: Mapping[str, PoolTerms],
) -> dict[str, int]:
    """An owner's limit divided among the pools, in nodes; their sum is at most the limit."""
    owned = [job for job in problem.jobs if job.owner == owner and job.id in homes]
    held, usable = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    for job in owned:
        pool = homes[job.id]
        held[pool] += len(job.current_nodes)
        usable[pool] += min(job.max_nodes, job.curve[-1].nodes)
    held = _divide(problem.owner_limits[owner], held)
    for pool, nodes in members.items():
        own = terms[pool].max_nodes_per_owner
        usable[pool] = min(usable[pool], terms[pool].most(len(nodes)), len(nodes) if own is None else own)
    more = {pool: max(0, usable[pool] - held[pool]) for pool in members}
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
    forward: tuple[ForwardTime, ObservedChanges, PoolTerms],
    limits: Mapping[str, int],
) -> AllocationProblem:
    inside = frozenset(nodes)
    stays = {node: stay for node, stay in problem.expected_stay_seconds.items() if node in inside}
    jobs = tuple(
        replace(job, current_nodes=tuple(node for node in job.current_nodes if node in inside))
        for job in problem.jobs
        if homes.get(job.id) == pool
    )
    time, changes, terms = forward
    seconds = (terms.forward or time).of(
        stays.values(), changes, [start_seconds(job.scale_up_seconds, job.boot_seconds) for job in jobs]
    )
    if terms.forward is not None:
        jobs = tuple(replace(job, boot_seconds=min(job.boot_seconds, MAX_BOOT * seconds)) for job in jobs)
    if (most := terms.max_nodes_per_owner) is not None:
        limits = {owner: min(most, limits.get(owner, most)) for owner in dict.fromkeys(job.owner for job in jobs)}
    return replace(
        problem,
        nodes=tuple(nodes),
        jobs=jobs,
        forward_seconds=seconds,
        objective_metric=terms.objective_metric or problem.objective_metric,
        max_nodes=terms.max_nodes,
        expected_stay_seconds=stays,
        owner_limits=limits,
        kinds=restrict_kinds(problem.kinds, inside),
    )
