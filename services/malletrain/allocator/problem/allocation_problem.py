"""The allocation problem and its solution (BFTrainer §3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.model.job_terms import JobTerms
from malletrain.model.job_value import LINEAR, ValueCurve
from malletrain.model.scaling import RescaleStall, ScalingPoint
from malletrain.model.topology import GroupPath

DEFAULT_SECONDS = 5.0
"""Default wall-clock limit of a solve in seconds."""


class CostModel(StrEnum):
    """How a rescale is charged; see docs/allocation.md."""

    PAPER = "paper"
    STALL = "stall"


class ObjectiveMetric(StrEnum):
    """How a job's progress is measured."""

    THROUGHPUT = "throughput"
    SCALING_EFFICIENCY = "scaling_efficiency"


class Formulation(StrEnum):
    """Which model solves a problem."""

    AUTO = "auto"
    DP = "dp"
    COUNTS = "counts"
    NODES = "nodes"
    MILP = "milp"


@dataclass(frozen=True)
class NeedCount:
    """One of the things that a job needs of its nodes.

    Attributes:
        text: For people, e.g. "GPU a100".
        nodes: How many of the problem's nodes meet it.
    """

    text: str
    nodes: int


@dataclass(frozen=True)
class NodeKind:
    """Nodes that suit the same jobs.

    Attributes:
        nodes: Their names.
    """

    nodes: tuple[str, ...]


_MAX_SPEEDUP_OF_A_NODE = 4.0


@dataclass(frozen=True)
class IdentifiedJob:
    """A job with an identifier, which comes first where its values are given without names."""

    id: str


@dataclass(frozen=True)
class JobDemand(JobTerms, IdentifiedJob):
    """One job of a problem.

    Attributes:
        id: Identifier, unique in the problem.
        weight: Priority weight, `share_weight` included.
        curve: O_j: points with ascending nodes, linear between them and from 0 at 0 nodes to the first. Scales above
            the last point are not permitted.
        scale_up_seconds: R_up, stall of a growth in seconds.
        scale_down_seconds: R_down, stall of a shrink in seconds.
        current_nodes: Nodes that it holds now. After a preemption they may be fewer than min_nodes.
        stalls: Stalls measured for pairs of scales, each pair once. They replace R_up and R_down, except with the
            `paper` cost model.
        owner: Name of the user who submitted it; empty where it does not matter.
        share_weight: The factor in `weight` that comes from its owner's fair share.
        boot_seconds: How long new workers boot before a growth, in seconds, while the others train on. The `paper` cost
            model does not charge it.
        unsuitable_kinds: Indices in the problem's `kinds`: the job takes none of these nodes, but keeps what it has.
        needs: What it needs of its nodes, and how many meet each of it: only explanations use it.
        topology: Whether it matters how near its nodes are to each other. Only a requirement changes numbers of nodes.
        value: What its speed counts for, besides the weight.
        wanted_nodes: Its nodes by the newest plan, where it does not have just these yet; empty otherwise. It keeps or
            takes them rather than others. Those that are not in the problem, or another job's, do not matter.
    """

    curve: tuple[ScalingPoint, ...]
    scale_up_seconds: float = 0.0
    scale_down_seconds: float = 0.0
    current_nodes: tuple[str, ...] = ()
    stalls: tuple[RescaleStall, ...] = ()
    owner: str = ""
    share_weight: float = 1.0
    boot_seconds: float = 0.0
    unsuitable_kinds: tuple[int, ...] = ()
    needs: tuple[NeedCount, ...] = ()
    value: ValueCurve = LINEAR
    wanted_nodes: tuple[str, ...] = ()

    @property
    def unit_rate(self) -> float:
        """The rate in samples/s whose scaling efficiency is 1: that on one node.

        No more than a speedup of four for each node is believed of a curve. One that is declared to do next to nothing
        on one node would otherwise be worth any number of others. 1 where all rates are 0.
        """
        points = [point for point in self.curve if point.nodes > 0]
        least = max(point.rate / point.nodes for point in points) / _MAX_SPEEDUP_OF_A_NODE
        return max(points[0].rate / points[0].nodes, least) or 1.0


@dataclass(frozen=True)
class AllocationProblem:
    """The question which nodes each job should get.

    Attributes:
        nodes: Names of the idle nodes.
        forward_seconds: T_fwd in seconds.
        jobs: In the order of their submission: ties go to earlier jobs.
        cost_model: How rescales are charged.
        objective_metric: How progress is measured.
        expected_stay_seconds: How much longer each node is expected to stay idle, in seconds; 0 if it is missing.
        owner_limits: Most nodes of all jobs of an owner together, by owner; an owner who is missing has no limit.
        kinds: Nodes that do not suit all jobs, by which of them they suit; each node once at most, and the others suit
            all jobs.
        paths: The groups that nodes are in, such as their racks, by node; may have other nodes besides. Empty where no
            job minds.
        max_nodes: Most nodes of all jobs together; None: no limit.
    """

    nodes: tuple[str, ...]
    forward_seconds: float
    jobs: tuple[JobDemand, ...] = ()
    cost_model: CostModel = CostModel.STALL
    objective_metric: ObjectiveMetric = ObjectiveMetric.THROUGHPUT
    expected_stay_seconds: Mapping[str, float] = field(default_factory=dict)
    owner_limits: Mapping[str, int] = field(default_factory=dict)
    kinds: tuple[NodeKind, ...] = ()
    paths: Mapping[str, GroupPath] = field(default_factory=dict)
    max_nodes: int | None = None

    @property
    def capacity(self) -> int:
        """How many nodes jobs can have together."""
        return self.within_limit(len(self.nodes))

    def within_limit(self, nodes: int) -> int:
        """How many of so many nodes jobs may have together."""
        return nodes if self.max_nodes is None else min(nodes, self.max_nodes)


@dataclass(frozen=True)
class Assignment:
    """The nodes of one job. A job without nodes waits."""

    job_id: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Allocation:
    """The solution of a problem.

    Attributes:
        objective: Value of the objective, in metric x seconds.
        status: OPTIMAL (proven), FEASIBLE (best solution within the time limit) or UNCHANGED (no solution was found:
            every job keeps its nodes).
        solver: "dp", "highs-counts", "highs-milp", "highs-nodes", "highs-kinds", "highs-groups", "greedy" or "present".
        solve_seconds: Wall-clock time in seconds.
        assignments: One per job, in the problem's order.
        fallback_reason: Why another solver answered than the requested one; empty where the requested one did.
    """

    objective: float
    status: str
    solver: str
    solve_seconds: float
    assignments: tuple[Assignment, ...]
    fallback_reason: str = ""
