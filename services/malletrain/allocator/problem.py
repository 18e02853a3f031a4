"""The allocation problem and its answer (BFTrainer §3.1), as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_SECONDS = 5.0
"""Wall-clock limit of a solve unless told otherwise, in seconds."""


class CostModel(StrEnum):
    """How rescaling is charged; see docs/allocation.md."""

    PAPER = "paper"
    STALL = "stall"


class ObjectiveMetric(StrEnum):
    """What a job's progress is worth."""

    THROUGHPUT = "throughput"
    SCALING_EFFICIENCY = "scaling_efficiency"


class Formulation(StrEnum):
    """Which model solves the problem."""

    AUTO = "auto"
    DP = "dp"
    COUNTS = "counts"
    NODES = "nodes"


@dataclass(frozen=True)
class ScalingPoint:
    """A point of a scaling curve: nodes, and samples/s at that scale."""

    nodes: int
    rate: float


@dataclass(frozen=True)
class Stall:
    """What a rescale from one scale to another costs, in seconds of standing still."""

    from_nodes: int
    to_nodes: int
    seconds: float


@dataclass(frozen=True)
class JobDemand:
    """One job of a problem.

    Attributes:
        id: Identifier, unique in the problem.
        min_nodes: Smallest scale in nodes.
        max_nodes: Largest scale in nodes.
        curve: O_j: points with ascending nodes; linear between them and from 0 at 0 nodes to the first. Sizes above
            the last point are not permitted.
        scale_up_seconds: R_up, stall of a growth in seconds.
        scale_down_seconds: R_down, stall of a shrink in seconds.
        weight: Priority weight.
        current_nodes: Nodes that it holds now; may be fewer than min_nodes after a preemption.
        permitted_nodes: Permitted scales; empty: every scale in the bounds.
        stalls: Stalls known for single pairs of scales, each pair once; elsewhere R_up and R_down hold. The `paper`
            cost model does without them.
    """

    id: str
    min_nodes: int
    max_nodes: int
    curve: tuple[ScalingPoint, ...]
    scale_up_seconds: float = 0.0
    scale_down_seconds: float = 0.0
    weight: float = 1.0
    current_nodes: tuple[str, ...] = ()
    permitted_nodes: tuple[int, ...] = ()
    stalls: tuple[Stall, ...] = ()


@dataclass(frozen=True)
class AllocationProblem:
    """Which nodes should each job get?

    Attributes:
        nodes: Names of the idle nodes.
        forward_seconds: T_fwd in seconds.
        jobs: Earlier jobs first: ties go to them.
        cost_model: How rescaling is charged.
        objective_metric: What progress is worth.
        expected_stay_seconds: Expected further stay of nodes in seconds; names without one count as 0.
    """

    nodes: tuple[str, ...]
    forward_seconds: float
    jobs: tuple[JobDemand, ...] = ()
    cost_model: CostModel = CostModel.STALL
    objective_metric: ObjectiveMetric = ObjectiveMetric.THROUGHPUT
    expected_stay_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """The nodes of one job; none: it waits."""

    job_id: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Allocation:
    """An answer.

    Attributes:
        objective: Value of the objective, metric times seconds.
        status: OPTIMAL (proven), FEASIBLE (best in the time limit) or UNCHANGED (nothing found: the present map).
        solver: "dp", "highs-counts", "highs-nodes" or "present".
        solve_seconds: Wall-clock time in seconds.
        assignments: One per job, in the problem's order.
        fallback_reason: Why another solver than the asked one answered; empty when it did not.
    """

    objective: float
    status: str
    solver: str
    solve_seconds: float
    assignments: tuple[Assignment, ...]
    fallback_reason: str = ""
