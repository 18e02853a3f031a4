"""At how many nodes a job may run and what it counts for: the same wherever a service has a job of its own form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from malletrain.model.scaling import permitted_scales
from malletrain.model.topology import TopologyPreference

MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6
"""Of a priority weight. Beyond them a sum over jobs would lose what others are worth."""


def bounded_weight(weight: float) -> float:
    """The nearest weight that is in bounds, for jobs that were stored before there were any."""
    return min(MAX_WEIGHT, max(MIN_WEIGHT, weight))


@dataclass(frozen=True)
class JobTerms:
    """What plans need of a job's specification, of whatever form a service gives to jobs.

    JobManager's spec, the Allocator's jobs and demands and the Profiler's declarations are all terms with more. A new
    field belongs here where several of them need it: `terms` hands it on.

    Attributes:
        min_nodes: Smallest scale in nodes; of a member of a fleet in GPUs.
        max_nodes: Largest scale.
        permitted_nodes: The only permitted scales, ascending; empty: every scale in the bounds.
        weight: Priority weight, MIN_WEIGHT to MAX_WEIGHT.
        topology: Whether it matters how near its nodes are to each other.
        topology_level: The level of the group that all its nodes must be in, or all of a replica, as
            `topology.group_of` takes it.
        nodes_per_replica: Nodes that one copy of the model is divided among; the permitted scales are whole replicas.
    """

    min_nodes: int
    max_nodes: int
    _: KW_ONLY
    permitted_nodes: tuple[int, ...] = ()
    weight: float = 1.0
    topology: TopologyPreference = TopologyPreference.NONE
    topology_level: int = 0
    nodes_per_replica: int = 1

    def terms(self, **others: Any) -> dict[str, Any]:
        """The fields of these terms by their names, for a job of another form.

        Args:
            others: Values that the other job has in place of these, or besides.
        """
        return {name: getattr(self, name) for name in _FIELDS} | others

    @property
    def scales(self) -> Sequence[int]:
        """Scales at which it may run, ascending."""
        return permitted_scales(self.min_nodes, self.max_nodes, self.permitted_nodes)

    def permits(self, nodes: int) -> bool:
        """Whether the job may run at a scale."""
        return self.min_nodes <= nodes <= self.max_nodes and (not self.permitted_nodes or nodes in self.permitted_nodes)

    def max_within(self, nodes: int) -> int:
        """The largest permitted scale of at most `nodes`; 0 if there is none."""
        if self.permitted_nodes:
            return max((scale for scale in self.permitted_nodes if self.permits(scale) and scale <= nodes), default=0)
        return min(nodes, self.max_nodes) if nodes >= self.min_nodes else 0

    @property
    def grouped_nodes(self) -> int:
        """How many nodes make a replica whose nodes must all be in one group; 1 where replicas need not be."""
        return self.nodes_per_replica if self.topology is TopologyPreference.REQUIRE_REPLICA else 1

    @property
    def smallest(self) -> int:
        """The smallest permitted scale."""
        return self.permitted_nodes[0] if self.permitted_nodes else self.min_nodes


_FIELDS = tuple(field.name for field in fields(JobTerms))
