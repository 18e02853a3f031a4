"""Kinds of nodes: which nodes suit the same jobs, from what each job needs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand, NeedCount, NodeKind
from malletrain.model.node_needs import NodeNeeds, NodeTraits, TraitCensus, as_asked, needs_of

_MAX_KINDS = 64
"""More make problems too large. They come of many jobs that each exclude other nodes."""

NamedTraits = tuple[str, NodeTraits]
"""Name and traits of a node."""


def with_kinds(
    problem: AllocationProblem, nodes: Sequence[NamedTraits], needs: Sequence[NodeNeeds]
) -> AllocationProblem:
    """A problem that tells which nodes suit which jobs; the problem itself where all suit all.

    Args:
        problem: A valid problem without kinds.
        nodes: Its nodes, in its order.
        needs: What each of its jobs needs, in its order.
    """
    distinct = list(dict.fromkeys(filter(None, needs)))
    if not distinct:
        return problem
    census = TraitCensus(as_asked(dict(nodes), distinct))
    members = _at_most(_MAX_KINDS, census.kinds(distinct))
    barred_from = {
        need: tuple(kind for kind, barred in enumerate(members) if index in barred)
        for index, need in enumerate(distinct)
    }
    counts = {need: tuple(NeedCount(one.text, census.count(one.part)) for one in needs_of(need)) for need in distinct}
    jobs = (
        replace(job, unsuitable_kinds=barred_from[need], needs=counts[need]) if need else job
        for job, need in zip(problem.jobs, needs, strict=True)
    )
    return replace(problem, jobs=tuple(jobs), kinds=tuple(NodeKind(tuple(names)) for names in members.values()))


def _at_most(max_kinds: int, members: dict[tuple[int, ...], list[str]]) -> dict[tuple[int, ...], list[str]]:
    """Kinds with their nodes. The smallest of very many are one, which suits only the jobs that all of them suit."""
    if len(members) <= max_kinds:
        return members
    by_size = sorted(members, key=lambda barred: -len(members[barred]))
    kinds, rest = {barred: members[barred] for barred in by_size[: max_kinds - 1]}, by_size[max_kinds - 1 :]
    together = tuple(sorted({index for barred in rest for index in barred}))
    kinds[together] = [*kinds.get(together, []), *(name for barred in rest for name in members[barred])]
    return kinds


def restrict_kinds(kinds: Iterable[NodeKind], nodes: Collection[str]) -> tuple[NodeKind, ...]:
    """The kinds with some of the nodes only; their indices stay."""
    return tuple(NodeKind(tuple(name for name in kind.nodes if name in nodes)) for kind in kinds)


def suitable_nodes(problem: AllocationProblem, job: JobDemand) -> frozenset[str]:
    """The nodes that suit a job."""
    return frozenset(problem.nodes).difference(*(problem.kinds[kind].nodes for kind in job.unsuitable_kinds))
