"""Random problems with jobs whose nodes must be in groups, and the rules for their plans, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product

from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand, NodeKind
from malletrain.allocator.problem.objective import scale_values
from malletrain.model.topology import GroupPath, TopologyPreference, group_of
from tests.allocator.problems import problems

PATHS: list[GroupPath] = [(), ("a",), ("a", "x"), ("a", "y"), ("b", "x")]


@st.composite
def in_groups(draw: st.DrawFn) -> AllocationProblem:
    """Nodes in racks and rows, some nobody knows where; jobs that must be in one of them, some spread, and others."""
    problem = draw(problems(max_jobs=3, most_nodes=6))
    paths = {node: draw(st.sampled_from(PATHS)) for node in problem.nodes}
    jobs = []
    for job in problem.jobs:
        topology = draw(st.sampled_from([*TopologyPreference, TopologyPreference.REQUIRE]))
        level = draw(st.integers(0, 2)) if topology.requires else 0
        job = replace(
            job, min_nodes=min(job.min_nodes, draw(st.integers(1, 2))), topology=topology, topology_level=level
        )
        if topology is TopologyPreference.REQUIRE_REPLICA:
            job = in_replicas(job, draw(st.integers(2, 3)))
        elif draw(st.booleans()):
            first = next((group_of(paths[node], level) for node in job.current_nodes), None)
            kept = tuple(node for node in job.current_nodes if group_of(paths[node], level) == first)
            job = replace(job, current_nodes=kept)
        jobs.append(job)
    problem = replace(problem, jobs=tuple(jobs), paths={node: path for node, path in paths.items() if path})
    if not draw(st.booleans()):
        return problem
    special = tuple(node for node in problem.nodes if draw(st.booleans()))
    suited = [replace(job, unsuitable_kinds=(0,) if draw(st.booleans()) else ()) for job in problem.jobs]
    return replace(problem, jobs=tuple(suited), kinds=(NodeKind(special),))


def in_replicas(job: JobDemand, nodes: int) -> JobDemand:
    """The job with whole replicas of so many nodes at its scales."""
    most = max(nodes, job.max_nodes - job.max_nodes % nodes)
    scales = tuple(range(nodes, most + 1, nodes))
    return replace(job, min_nodes=nodes, max_nodes=most, permitted_nodes=scales, nodes_per_replica=nodes)


def node_sets(problem: AllocationProblem, job: JobDemand, count: int) -> list[frozenset[str]]:
    """All sets of so many nodes that a job could have, by the rules themselves: node by node."""
    held = set(job.current_nodes)
    barred = {node for kind in job.unsuitable_kinds for node in problem.kinds[kind].nodes}
    if count <= len(held):
        found = [frozenset(kept) for kept in combinations(sorted(held), count)]
    else:
        more = sorted(set(problem.nodes) - barred - held)
        found = [frozenset(held | set(extra)) for extra in combinations(more, count - len(held))]
    if not job.topology.requires:
        return found
    return [nodes for nodes in found if is_allowed(problem, job, nodes)]


def is_allowed(problem: AllocationProblem, job: JobDemand, nodes: frozenset[str]) -> bool:
    """Whether they are of one group, or whole replicas of each; of no known group are only nodes that the job has."""
    groups = Counter(group_of(problem.paths.get(node, ()), job.topology_level) for node in nodes)
    unknown = {node for node in nodes if group_of(problem.paths.get(node, ()), job.topology_level) is None}
    if not unknown <= set(job.current_nodes):
        return False
    if job.topology is TopologyPreference.REQUIRE_REPLICA:
        return all(count % job.nodes_per_replica == 0 for count in groups.values())
    return len(groups) <= 1


def brute_force(problem: AllocationProblem) -> float:
    """The best objective, by trying every set of nodes for every job."""
    per_job = [scale_values(job, problem) for job in problem.jobs]
    best = 0.0 if not per_job else float("-inf")
    for choice in product(*(range(len(scales.sizes)) for scales in per_job)):
        value = sum(float(scales.values[place]) for scales, place in zip(per_job, choice, strict=True))
        counts = [int(scales.sizes[place]) for scales, place in zip(per_job, choice, strict=True)]
        if value > best and has_nodes(problem, counts):
            best = value
    return best


def has_nodes(problem: AllocationProblem, counts: list[int]) -> bool:
    def fits(index: int, used: frozenset[str]) -> bool:
        if index == len(counts):
            return True
        sets = node_sets(problem, problem.jobs[index], counts[index])
        return any(fits(index + 1, used | nodes) for nodes in sets if not nodes & used)

    return fits(0, frozenset())


def check(problem: AllocationProblem, nodes_of: Mapping[str, tuple[str, ...]]) -> None:
    handed = [node for nodes in nodes_of.values() for node in nodes]
    assert len(handed) == len(set(handed))
    for job in problem.jobs:
        own = frozenset(nodes_of[job.id])
        assert own in node_sets(problem, job, len(own)), f"{job.id} may not have {sorted(own)}"
        if job.topology is TopologyPreference.REQUIRE_REPLICA:
            check_replicas(problem, job, nodes_of[job.id])


def check_replicas(problem: AllocationProblem, job: JobDemand, nodes: tuple[str, ...]) -> None:
    """The nodes of each replica follow each other."""
    for first in range(0, len(nodes), job.nodes_per_replica):
        replica = nodes[first : first + job.nodes_per_replica]
        assert len(replica) == job.nodes_per_replica
        assert len({group_of(problem.paths.get(node, ()), job.topology_level) for node in replica}) == 1


def best_at(problem: AllocationProblem, index: int, nodes: int) -> float:
    """The best objective with a job at a scale; minus infinity where there is no such plan."""
    per_job = [scale_values(job, problem) for job in problem.jobs]
    found = float("-inf")
    for choice in product(*(range(len(scales.sizes)) for scales in per_job)):
        counts = [int(scales.sizes[place]) for scales, place in zip(per_job, choice, strict=True)]
        value = sum(float(scales.values[place]) for scales, place in zip(per_job, choice, strict=True))
        if counts[index] == nodes and value > found and has_nodes(problem, counts):
            found = value
    return found
