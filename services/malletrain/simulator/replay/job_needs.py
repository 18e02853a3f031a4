"""What jobs of a replay need of each of their nodes, on nodes of which that is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from malletrain.model.node_needs import NodeNeeds, in_words, suits
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.simulator.replay.job_set import ReplayJob


def check_suitable(jobs: Iterable[ReplayJob], nodes: Iterable[str], facts: Mapping[str, NodeFacts]) -> None:
    """Refuse a job that could never run: it would keep its place until the end.

    Args:
        jobs: The jobs.
        nodes: All nodes of the replay.
        facts: What nodes are; those that are missing are not known.

    Raises:
        InvalidInputError: fewer nodes suit a job than it needs at least; names the job.
    """
    traits = [(name, facts.get(name, NO_FACTS).traits) for name in nodes]
    counts: dict[NodeNeeds, int] = {}
    for job in jobs:
        if not job.needs:
            continue
        if job.needs not in counts:
            counts[job.needs] = sum(suits(job.needs, name, about) for name, about in traits)
        if (found := counts[job.needs]) < job.min_nodes:
            expected = f"at least {job.min_nodes} nodes that suit job {job.id} ({in_words(job.needs)})"
            raise InvalidInputError("node_traits beside the trace", expected, found)
