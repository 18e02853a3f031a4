"""Why a job has a node: who had it, who got it, and its place by expected stay, by the rules of `placement`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.allocator.problem.allocation_problem import AllocationProblem
from malletrain.allocator.problem.kinds import suitable_nodes
from malletrain.allocator.problem.scale_pins import PinnedProblem
from malletrain.model.topology import TopologyPreference


@dataclass(frozen=True)
class NodeAccount:
    """Why a job has a node.

    Attributes:
        name: Name of the node.
        before: Job that had it; empty where none did.
        after: Job that got it; empty where none did.
        stay_seconds: Expected further stay in seconds; 0 where it is not known.
        scale: Of the job that got it, or else of the one that had it: nodes before and after.
        rank: Its place, from 1, by expected stay, longest first; 0 where that did not matter.
        of: Among how many nodes: those that the job had where it shrank, otherwise those that were free to give.
        pinned: Whether the Profiler set the scale of the job that got it.
        near: Whether the job that got it, or else the one that had it, prefers or requires nodes near each other, and
            where nodes are is known.
    """

    name: str
    pool: str
    before: str
    after: str
    stay_seconds: float
    scale: tuple[int, int] = (0, 0)
    rank: int = 0
    of: int = 0
    pinned: bool = False
    near: bool = False


def node_account(part: PinnedProblem, pool: str, assignments: Mapping[str, Sequence[str]], name: str) -> NodeAccount:
    """Why a job has a node of this part.

    Args:
        part: The part of the plan.
        pool: Name of its pool.
        assignments: Nodes of every job of the part, by job identifier.
        name: Name of a node of the part.
    """
    held = {job.id: job.current_nodes for job in part.whole.jobs}
    before = next((job_id for job_id, nodes in held.items() if name in nodes), "")
    after = next((job_id for job_id, nodes in assignments.items() if name in nodes), "")
    job = after or before
    scale = (len(held[job]), len(assignments[job])) if job else (0, 0)
    pinned = after in part.pinned
    prefers = {one.id for one in part.whole.jobs if one.topology is not TopologyPreference.NONE}
    near = bool(part.whole.paths) and job in prefers
    if before and after in ("", before):  # the job that had it has kept it or given it up
        rank, of = _place(part.whole, held[before], name) if scale[1] < scale[0] else (0, 0)
    else:
        rank, of = (0, 0) if pinned else _place(part.whole, _free(part.rest, assignments, after), name)
    if near:
        rank, of = 0, 0
    return NodeAccount(
        name, pool, before, after, part.whole.expected_stay_seconds.get(name, 0.0), scale, rank, of, pinned, near
    )


def _free(rest: AllocationProblem, assignments: Mapping[str, Sequence[str]], taker: str) -> list[str]:
    """Nodes that growing jobs could take: all but those that jobs have kept, and that do not suit the taker, if any."""
    unmoved = {node for job in rest.jobs for node in set(job.current_nodes) & set(assignments[job.id])}
    free = [node for node in rest.nodes if node not in unmoved]
    suited = next((suitable_nodes(rest, job) for job in rest.jobs if job.id == taker and job.unsuitable_kinds), None)
    return free if suited is None else [node for node in free if node in suited]


def _place(problem: AllocationProblem, nodes: Sequence[str], name: str) -> tuple[int, int]:
    """Place of a node among some by expected stay, and their number; the problem's order breaks ties."""
    order = {node: index for index, node in enumerate(problem.nodes)}
    stays = problem.expected_stay_seconds
    ordered = sorted(nodes, key=lambda node: (-stays.get(node, 0.0), order[node]))
    return ordered.index(name) + 1, len(ordered)
