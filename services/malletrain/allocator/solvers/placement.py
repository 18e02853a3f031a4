"""Placement: which nodes each job gets, given how many. No job migrates (BFTrainer, Eq. 6). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from malletrain.allocator.problem.allocation_problem import AllocationProblem, Assignment
from malletrain.allocator.problem.group_table import PartedProblem
from malletrain.allocator.solvers.kind_flow import KindFlow, KindTable
from malletrain.allocator.solvers.near_nodes import Move, Share, divide, fewest_groups
from malletrain.model.topology import NodeTree, TopologyPreference

Rank = Callable[[str], tuple[float, int]]
"""Sort key of a node: nodes that are expected to stay longer come first. No two nodes have the same key."""


def place(problem: AllocationProblem, counts: Sequence[int]) -> tuple[Assignment, ...]:
    """Choose the nodes of every job.

    A shrinking job gives up the nodes that are expected to leave first. Growing jobs then take, in the order of the
    problem, the free nodes that are expected to stay longest. The problem's order of nodes breaks ties. Where not all
    nodes suit all jobs, they take the best ones that leave enough for the others.

    Before all that comes what the newest plan says of jobs that do not have its nodes yet (`JobDemand.wanted_nodes`):
    by the time that this plan is applied they may have them, and other nodes as many would be a migration.

    Jobs that prefer nodes near each other choose before the others, so that they span few groups (`near_nodes`); within
    a group the same rules hold. So do jobs that must be in groups, which the problem's kinds keep them in
    (`GroupTable.within`).

    Args:
        problem: A valid problem.
        counts: Number of nodes of each job, for which there are suitable nodes (`kind_flow.can_be_placed`).

    Returns:
        The nodes of every job, in the problem's order of jobs and nodes.
    """
    order = dict(zip(problem.nodes, range(len(problem.nodes)), strict=True))
    stays = problem.expected_stay_seconds
    held = [job.current_nodes for job in problem.jobs]
    held_nodes = set(chain.from_iterable(held))
    free = [node for node in problem.nodes if node not in held_nodes]

    def rank(node: str) -> tuple[float, int]:
        return -stays.get(node, 0.0), order[node]

    near = problem.paths and any(job.topology is not TopologyPreference.NONE for job in problem.jobs)
    if problem.kinds:
        tree = NodeTree.of(problem.nodes, problem.paths) if near else None
        changed = _by_kind(problem, counts, free, rank, tree)
    else:
        wanted = [job.wanted_nodes for job in problem.jobs]
        changed = _near(problem, counts, free, rank) if near else rearrange(held, counts, free, rank, wanted)

    nodes = [changed.get(index, nodes) for index, nodes in enumerate(held)]
    return tuple(map(Assignment, [job.id for job in problem.jobs], _in_order(nodes, order, problem.nodes)))


def _in_order(
    nodes_of_jobs: Sequence[Sequence[str]], order: Mapping[str, int], nodes: Sequence[str]
) -> Iterable[tuple[str, ...]]:
    """The nodes of each job in the order of all nodes.

    Most jobs keep their nodes, which are in order: then it is the same tuple, which is compared faster with what is
    wanted. Which jobs need more than that is found for all of them at once.
    """
    places = np.fromiter(map(order.__getitem__, chain.from_iterable(nodes_of_jobs)), dtype=np.int64)
    ends = np.cumsum(np.fromiter(map(len, nodes_of_jobs), dtype=np.int64))
    descents = np.flatnonzero(places[1:] < places[:-1]) + 1
    unordered = set(np.searchsorted(ends, np.setdiff1d(descents, ends), side="right").tolist())
    for index, of_job in enumerate(nodes_of_jobs):
        if index in unordered:
            yield tuple(map(nodes.__getitem__, sorted(map(order.__getitem__, of_job))))
        else:
            yield tuple(of_job)


def place_parts(parted: PartedProblem, problem: AllocationProblem) -> tuple[Assignment, ...]:
    """As `place`, for a problem that some jobs are several parts of.

    Args:
        parted: The parts.
        problem: The whole problem.

    Returns:
        The nodes of every job, in the problem's order of jobs. Those of a job with several parts are in the order of
        its parts: if these are whole replicas, the nodes of each replica follow each other.
    """
    nodes: dict[int, tuple[str, ...]] = {}
    for job, part in zip(parted.job_of, place(parted.problem, parted.counts), strict=True):
        nodes[job] = nodes[job] + part.nodes if job in nodes else part.nodes
    return tuple(Assignment(job.id, nodes[index]) for index, job in enumerate(problem.jobs))


def rearrange(
    held: Sequence[Collection[str]],
    counts: Sequence[int],
    free: Iterable[str],
    rank: Rank,
    wanted: Sequence[Collection[str]] = (),
) -> dict[int, list[str]]:
    """Choose the nodes of the jobs whose count changes; the other jobs keep theirs.

    Args:
        held: Present nodes of each job.
        counts: New number of nodes of each job; their sum is at most the number of nodes, free ones included.
        free: Nodes that no job holds.
        rank: Sort key of a node; called only for free nodes and nodes of jobs that shrink.
        wanted: Nodes that each job keeps or takes first; empty: no job minds.

    Returns:
        New nodes of each changed job, by the job's index; those that give up nodes first.
    """
    changed: dict[int, list[str]] = {}
    pool = list(free)
    growing: dict[int, list[str]] = {}
    for index, (nodes, count) in enumerate(zip(held, counts, strict=True)):
        if count < len(nodes):
            best_first = _best_first(nodes, wanted[index] if wanted else (), rank)
            changed[index] = best_first[:count]
            pool += best_first[count:]
        elif count > len(nodes):
            growing[index] = list(nodes)
    if wanted:
        pool = _take_wanted(wanted, growing, counts, pool)
    missing = {index: counts[index] - len(nodes) for index, nodes in growing.items()}
    if 0 < sum(missing.values()) < len(pool) or len(missing) > 1:
        pool.sort(key=rank)
    first = 0
    for index, number in missing.items():
        growing[index] += pool[first : first + number]
        first += number
    return changed | growing


def _best_first(nodes: Iterable[str], wanted: Collection[str], rank: Rank) -> list[str]:
    """Nodes that a shrinking job has, those first that it is to keep."""
    best_first = sorted(nodes, key=rank)
    if wanted:
        kept = frozenset(wanted)
        best_first.sort(key=lambda node: node not in kept)
    return best_first


def _take_wanted(
    wanted: Sequence[Collection[str]], growing: Mapping[int, list[str]], counts: Sequence[int], pool: list[str]
) -> list[str]:
    """Give growing jobs those of the nodes wanted for them that nobody has.

    Args:
        wanted: Nodes that each job takes first; may be none.
        growing: The nodes of each growing job, by its index; added to.
        counts: Number of nodes that each job is to have.
        pool: Nodes that nobody has.

    Returns:
        The nodes that nobody has then, in the same order.
    """
    minding = [index for index in growing if wanted[index]]
    if not minding:
        return pool
    left = dict.fromkeys(pool)
    for index in minding:
        gained = [node for node in dict.fromkeys(wanted[index]) if node in left][: counts[index] - len(growing[index])]
        growing[index].extend(gained)
        for node in gained:
            del left[node]
    return list(left)


def _near(problem: AllocationProblem, counts: Sequence[int], free: Sequence[str], rank: Rank) -> dict[int, list[str]]:
    """As `rearrange`, for jobs of which some prefer nodes near each other: these choose first."""
    held: list[Sequence[str]] = [job.current_nodes for job in problem.jobs]
    wanted = [job.wanted_nodes for job in problem.jobs]
    choosing = [
        index
        for index, job in enumerate(problem.jobs)
        if job.topology is not TopologyPreference.NONE and counts[index] != len(held[index])
    ]
    # The others that shrink give up what they would in any case.
    waiting = frozenset(choosing)
    rest = [
        len(nodes) if index in waiting else min(count, len(nodes))
        for index, (nodes, count) in enumerate(zip(held, counts, strict=True))
    ]
    changed = rearrange(held, rest, free, rank, wanted)
    released = [node for index, nodes_left in changed.items() for node in set(held[index]).difference(nodes_left)]
    pool = sorted([*free, *released], key=rank)
    growing = {index: list(nodes) for index, nodes in enumerate(held) if counts[index] > len(nodes)}
    pool = _take_wanted(wanted, growing, counts, pool)
    for index, nodes in growing.items():
        held[index] = changed[index] = nodes
    if choosing:
        tree = NodeTree.of(problem.nodes, problem.paths)
        moves = [Move(tuple(tree.per_leaf(held[index])), counts[index]) for index in choosing]
        shares = divide(tree, moves, tree.per_leaf(pool)).shares
        for index, move, share in zip(choosing, moves, shares, strict=True):
            if move.shrinks:
                changed[index], released = _split(tree, _best_first(held[index], wanted[index], rank), share)
                pool += released
        free_by_leaf: dict[int, list[str]] = {}
        for node in sorted(pool, key=rank, reverse=True):
            free_by_leaf.setdefault(tree.leaf_of[node], []).append(node)
        for index, move, share in zip(choosing, moves, shares, strict=True):
            if not move.shrinks:
                gained = [free_by_leaf[leaf].pop() for leaf, count in share.items() for _ in range(count)]
                changed[index] = [*held[index], *gained]
        pool = sorted((node for nodes in free_by_leaf.values() for node in nodes), key=rank)
    now = [changed.get(index, nodes) for index, nodes in enumerate(held)]
    return changed | rearrange(now, counts, pool, rank, wanted)


def _split(tree: NodeTree, best_first: Iterable[str], share: Share) -> tuple[list[str], list[str]]:
    """The best nodes of each group, as many as a share has of it, and the other ones."""
    missing, chosen, others = dict(share), list[str](), list[str]()
    for node in best_first:
        leaf = tree.leaf_of[node]
        if missing.get(leaf, 0):
            missing[leaf] -= 1
            chosen.append(node)
        else:
            others.append(node)
    return chosen, others


def _by_kind(
    problem: AllocationProblem, counts: Sequence[int], free: Iterable[str], rank: Rank, tree: NodeTree | None
) -> dict[int, list[str]]:
    """As `rearrange`, by the kinds of nodes; with a tree for jobs of which some prefer nodes near each other."""
    table = KindTable.of(problem)
    flow = KindFlow.of(table, counts)
    assert flow is not None, "solvers check that there are suitable nodes"
    free_by_kind: list[list[str]] = [[] for _ in table.capacity]
    for node in free:
        free_by_kind[table.kind_of[node]].append(node)
    changed: dict[int, list[str]] = {}
    growing = []
    near = {index for index, job in enumerate(problem.jobs) if job.topology is not TopologyPreference.NONE and tree}
    for index, (job, count) in enumerate(zip(problem.jobs, counts, strict=True)):
        if count > len(job.current_nodes):
            changed[index] = list(job.current_nodes)
            growing.append(index)
        elif count < len(job.current_nodes):
            own_nodes = changed[index] = list[str]()
            if tree and index in near:
                own: list[list[str]] = [[] for _ in table.capacity]
                for node in job.current_nodes:
                    own[table.kind_of[node]].append(node)
                own_nodes += _take_near_nodes(index, flow, own, rank, tree, (), job.wanted_nodes)
                for kind, nodes in enumerate(own):
                    free_by_kind[kind] += nodes
                continue
            for node in _best_first(job.current_nodes, job.wanted_nodes, rank):
                kind = table.kind_of[node]
                (own_nodes if flow.take_node(index, kind) else free_by_kind[kind]).append(node)
    if any(problem.jobs[index].wanted_nodes for index in growing):
        left = set(chain.from_iterable(free_by_kind))
        for index in growing:
            for node in problem.jobs[index].wanted_nodes:
                if node in left and flow.take_node(index, table.kind_of[node]):
                    changed[index].append(node)
                    left.remove(node)
        free_by_kind = [[node for node in nodes if node in left] for nodes in free_by_kind]
    for nodes in free_by_kind:
        nodes.sort(key=rank, reverse=True)
    order = sorted(growing, key=lambda index: index not in near)
    choosy = [at for at, index in enumerate(order) if index in near or problem.jobs[index].unsuitable_kinds]
    first_of_rest = max(choosy, default=-1) + 1
    for index in order[:first_of_rest]:
        if tree and index in near:
            changed[index] += _take_near_nodes(index, flow, free_by_kind, rank, tree, changed[index])
        else:
            changed[index] += _take_nodes(index, flow, free_by_kind, rank)
    # Any node suits those that are left: they leave enough for each other whatever they take.
    rest = sorted((node for nodes in free_by_kind for node in nodes), key=rank)
    for index in order[first_of_rest:]:
        missing = counts[index] - len(changed[index])
        changed[index] += rest[:missing]
        rest = rest[missing:]
    return changed


def _take_near_nodes(
    index: int,
    flow: KindFlow,
    free_by_kind: Sequence[list[str]],
    rank: Rank,
    tree: NodeTree,
    held: Iterable[str],
    wanted: Collection[str] = (),
) -> list[str]:
    """As `_take_nodes`, for a job that prefers nodes near each other; it may also be one that chooses what it keeps."""
    gained, closed = list[str](), set[int]()
    while flow.wanted[index]:
        limits = flow.limits[index]
        kinds = {
            node: kind
            for kind, nodes in enumerate(free_by_kind)
            if kind not in closed and limits[kind]
            for node in nodes
        }
        touched = {tree.leaf_of[node] for node in (*held, *gained)}
        share = fewest_groups(tree, tree.per_leaf(kinds), touched, flow.wanted[index])
        for node in _split(tree, _best_first(kinds, wanted, rank), share)[0]:
            if not flow.take_node(index, kinds[node]):
                closed.add(kinds[node])  # what the others need does not become less
                break
            gained.append(node)
            free_by_kind[kinds[node]].remove(node)
    return gained


def _take_nodes(index: int, flow: KindFlow, free_by_kind: Sequence[list[str]], rank: Rank) -> list[str]:
    """The nodes that a growing job takes; removed from `free_by_kind`, whose lists end with the best."""
    gained, closed = list[str](), set[int]()
    while flow.wanted[index]:
        open_kinds = [kind for kind, nodes in enumerate(free_by_kind) if nodes and kind not in closed]
        best = min(open_kinds, key=lambda kind: rank(free_by_kind[kind][-1]))
        if flow.take_node(index, best):
            gained.append(free_by_kind[best].pop())
        else:
            closed.add(best)  # what the others need does not become less
    return gained
