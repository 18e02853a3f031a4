"""From what the peers say to an allocation problem, and when a new plan is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from malletrain.allocator.holds import Hold
from malletrain.allocator.horizon import Forward
from malletrain.allocator.problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric, ScalingPoint, Stall


@dataclass(frozen=True)
class IdleNode:
    """An idle node with its expected further stay in seconds, and its pool: nodes with the same GPUs."""

    name: str
    expected_stay_seconds: float = 0.0
    pool: str = ""


@dataclass(frozen=True)
class PlannableJob:
    """A job as a plan sees it.

    Attributes:
        id: Job identifier.
        min_nodes: Smallest scale in nodes.
        max_nodes: Largest scale in nodes.
        permitted_nodes: Permitted scales; empty: every scale in the bounds.
        weight: Priority weight.
        current_nodes: Nodes it is commanded to use.
    """

    id: str
    min_nodes: int
    max_nodes: int
    permitted_nodes: tuple[int, ...] = ()
    weight: float = 1.0
    current_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobCurve:
    """What is believed of a job's scaling: samples/s by nodes, stalls in seconds, also by pair of scales."""

    points: tuple[ScalingPoint, ...]
    scale_up_seconds: float
    scale_down_seconds: float
    stalls: tuple[Stall, ...] = ()


@dataclass(frozen=True)
class Situation:
    """All that a plan depends on.

    Attributes:
        nodes: Idle nodes that are not on their way back to the scheduler, in the source's order.
        jobs: Jobs that may get nodes, first come first.
        busy_nodes: Nodes of jobs that are being stopped: idle for the scheduler, not yet free for another job.
        curves: Curve of each job by its identifier.
        holds: Scales that the Profiler asks for, by job.
    """

    nodes: tuple[IdleNode, ...] = ()
    jobs: tuple[PlannableJob, ...] = ()
    busy_nodes: frozenset[str] = frozenset()
    curves: Mapping[str, JobCurve] = field(default_factory=dict)
    holds: Mapping[str, Hold] = field(default_factory=dict)

    @property
    def free_to_plan(self) -> tuple[IdleNode, ...]:
        """Nodes that a plan may hand out."""
        return tuple(node for node in self.nodes if node.name not in self.busy_nodes)

    @property
    def planned_jobs(self) -> tuple[PlannableJob, ...]:
        """Jobs whose curve is known."""
        return tuple(job for job in self.jobs if job.id in self.curves)


@dataclass(frozen=True)
class Options:
    """The operator's choices: how to come by T_fwd, cost model and metric."""

    forward: Forward
    cost_model: CostModel
    objective_metric: ObjectiveMetric


def build_problem(situation: Situation, options: Options) -> AllocationProblem:
    """The allocation problem of a situation (BFTrainer §3.1)."""
    nodes = situation.free_to_plan
    names = {node.name for node in nodes}
    demands = [_demand(job, situation.curves[job.id], names) for job in situation.planned_jobs]
    return AllocationProblem(
        nodes=tuple(node.name for node in nodes),
        forward_seconds=options.forward.of(node.expected_stay_seconds for node in nodes),
        jobs=tuple(demands),
        cost_model=options.cost_model,
        objective_metric=options.objective_metric,
        expected_stay_seconds={node.name: node.expected_stay_seconds for node in nodes},
    )


def _demand(job: PlannableJob, curve: JobCurve, idle: set[str]) -> JobDemand:
    return JobDemand(
        id=job.id,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        permitted_nodes=job.permitted_nodes,
        scale_up_seconds=curve.scale_up_seconds,
        scale_down_seconds=curve.scale_down_seconds,
        weight=job.weight,
        curve=curve.points,
        stalls=curve.stalls,
        current_nodes=tuple(node for node in job.current_nodes if node in idle),
    )


@dataclass(frozen=True)
class Signature:
    """What must differ for a new plan to be due: nodes, jobs and holds, not the curves nor our own rescales."""

    nodes: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    holds: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(cls, situation: Situation) -> Signature:
        """Signature of a situation."""
        return cls(
            frozenset(node.name for node in situation.free_to_plan),
            frozenset(job.id for job in situation.planned_jobs),
            frozenset(
                (job.id, situation.holds[job.id].nodes) for job in situation.planned_jobs if job.id in situation.holds
            ),
        )


def describe_change(before: Signature, after: Signature) -> str:
    """What led from one signature to the other, for people; empty where nothing did."""
    parts = (
        _part("nodes joined", after.nodes - before.nodes),
        _part("nodes left", before.nodes - after.nodes),
        _part("jobs arrived", after.jobs - before.jobs),
        _part("jobs ended", before.jobs - after.jobs),
        _part("held for a profile", (_in_words(hold) for hold in after.holds - before.holds)),
        _part("held no longer", (_in_words(hold) for hold in before.holds - after.holds)),
    )
    return "; ".join(part for part in parts if part)


def _in_words(hold: tuple[str, int]) -> str:
    job_id, nodes = hold
    return f"{job_id} at {nodes}" if nodes else f"{job_id} as it is"


def _part(label: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    if not ordered:
        return ""
    shown = ", ".join(ordered[:8]) + (f" and {len(ordered) - 8} more" if len(ordered) > 8 else "")
    return f"{label}: {shown}"
