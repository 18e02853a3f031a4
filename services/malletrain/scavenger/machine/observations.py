"""What a source of idle nodes tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from malletrain.model.node_needs import NodeTraits
from malletrain.model.topology import GroupPath


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node besides whether it is idle.

    Attributes:
        pool: Its partition, or the name that the operator gave to these nodes; empty: there is only one pool.
        gpu_type: Kind of its GPUs as the scheduler spells it, e.g. "a100"; empty without GPUs.
        gpus: How many GPUs it has.
        features: The scheduler's features of the node.
        cpus: How many CPUs jobs may use there; 0 where the source does not say.
        memory_mib: Memory that jobs may use there, in MiB; 0 where the source does not say.
        gpu_memory_mib: Memory of each of its GPUs in MiB, of different ones the least; 0: none, or nobody says.
        topology: The groups that it is in, from the outermost level; empty: not known.
    """

    pool: str = ""
    gpu_type: str = ""
    gpus: int = 0
    features: tuple[str, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    topology: GroupPath = ()

    @property
    def node_class(self) -> str:
        """The node's GPUs in a word: "a100x4", or "cpu"."""
        return f"{self.gpu_type}x{self.gpus}" if self.gpus else "cpu"

    @property
    def pool_key(self) -> str:
        """The pool that watchers are told: partition and GPUs, e.g. "main/a100x4", so that its nodes are equal.

        A job uses nodes of one pool, since a scaling curve over nodes assumes the same number of workers on each.
        """
        return "/".join(filter(None, [self.pool, self.node_class])) if self.gpus else self.pool

    @property
    def traits(self) -> NodeTraits:
        """What jobs choose it by."""
        return NodeTraits(
            self.pool_key, self.gpu_type, self.features, self.gpus, self.cpus, self.memory_mib, self.gpu_memory_mib
        )


def gpu_memory_of(gpu_type: str, by_kind: Mapping[str, int]) -> int:
    """Memory of each GPU of a node in MiB, by kind of GPU, capitals or not; 0: not known.

    Args:
        gpu_type: Kind of its GPUs; of several (a100+v100) the least counts.
        by_kind: MiB of each kind.
    """
    known = {kind.casefold(): mib for kind, mib in by_kind.items()}
    return min((known.get(kind.casefold(), 0) for kind in gpu_type.split("+")), default=0)


NO_FACTS = NodeFacts()
"""Facts of a node of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Observation:
    """All idle nodes at one instant. Times are seconds since the epoch.

    Attributes:
        time: The instant.
        idle: Idle nodes, and since when each is idle. The time of a node changes only when a new idle fragment begins.
        ended: The source has nothing more to tell; this observation stays true.
        ends: When the idleness of nodes will end at the latest, where the scheduler says.
        facts: What the nodes are, idle or not, where the source knows.
        agents: HOST:PORT of the agents of nodes. A node without an agent is this machine.
        agent_names: DNS names that only the certificates of these agents have; empty for an agent of version 0.1.
        known: Nodes that the source knows, idle or not, where it can tell.
        watched: As `idle`, for all nodes on which the main scheduler runs nothing. How long nodes stay idle is learned
            from these. None: as `idle`.
        reserved: Start of the present or next reservation of nodes, idle or not.
        offline: Nodes that an operator has taken out of use.
        stale: The source has been silent for too long, so that nodes are left out. That a node is missing does not mean
            that its idle fragment has ended.
        unfit: Why nodes failed the check before their first worker. Only the first observation after it says so.
    """

    time: float
    idle: Mapping[str, float]
    ended: bool = False
    ends: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    agent_names: Mapping[str, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    watched: Mapping[str, float] | None = None
    reserved: Mapping[str, float] = field(default_factory=dict)
    offline: frozenset[str] = frozenset()
    stale: bool = False
    unfit: Mapping[str, str] = field(default_factory=dict)

    def moved(self, seconds: float) -> Observation:
        """The wall clock was set by so many seconds. What the scheduler says of the future stays."""

        def later(times: Mapping[str, float]) -> dict[str, float]:
            return {name: time + seconds for name, time in times.items()}

        watched = None if self.watched is None else later(self.watched)
        return replace(self, time=self.time + seconds, idle=later(self.idle), watched=watched)
