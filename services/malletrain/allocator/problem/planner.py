"""From the present nodes, jobs and curves to an allocation problem, and from its solved parts to a plan. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from malletrain.allocator.fleets.members import FleetMember, LateRate
from malletrain.allocator.problem.allocation_problem import (
    Allocation,
    AllocationProblem,
    IdentifiedJob,
    JobDemand,
)
from malletrain.allocator.problem.forward_time import (
    MAX_BOOT,
    NOTHING_OBSERVED,
    ObservedChanges,
    start_seconds,
)
from malletrain.allocator.problem.kinds import with_kinds
from malletrain.allocator.problem.pools import PlannerOptions, PoolTerms, join, split, terms_of, within_places
from malletrain.allocator.problem.scale_pins import PinnedProblem, ScalePin, apply_pins
from malletrain.allocator.problem.validation import fault_of
from malletrain.common.memory_by_job import MemoryByJob
from malletrain.model.goodput import GradientNoise
from malletrain.model.job_terms import JobTerms
from malletrain.model.job_value import LINEAR, LINEAR_VALUE, SpeedValue, ValueCurve, curve_at, goodput_curve
from malletrain.model.node_needs import NO_NEEDS, NodeNeeds, NodeTraits, TraitCensus
from malletrain.model.scaling import RescaleStall, ScalingPoint
from malletrain.model.topology import GroupPath, TopologyPreference

_NAME: Callable[[PlannableNode], str] = attrgetter("name")
_POOL: Callable[[PlannableNode], str] = attrgetter("pool")
_STAY: Callable[[PlannableNode], float] = attrgetter("expected_stay_seconds")


class PlannableNode(NamedTuple):
    """An idle node, with all that a plan needs to know of it.

    Attributes:
        expected_stay_seconds: How much longer it was expected to stay idle when it was told of, in seconds; 0 where
            that is not known.
        pool: Its pool; nodes of a pool have the same GPUs.
        gpus: How many GPUs it has.
        gpu_type: Kind of its GPUs; empty without GPUs.
        features: The scheduler's features of it.
        cores: How many cores it has; 0: not known.
        memory_mib: Its memory in MiB; 0: not known.
        gpu_memory_mib: Memory of each of its GPUs in MiB; 0: none, or not known.
        topology: The groups that it is in, from the outermost level; empty: not known.
        slow: Whether it counts as slow.
    """

    name: str
    expected_stay_seconds: float = 0.0
    pool: str = ""
    gpus: int = 0
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    cores: int = 0
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    topology: GroupPath = ()
    slow: bool = False

    @property
    def traits(self) -> NodeTraits:
        """What jobs choose it by."""
        return NodeTraits(
            self.pool,
            self.gpu_type,
            self.features,
            self.gpus,
            self.cores,
            self.memory_mib,
            self.gpu_memory_mib,
            self.slow,
        )


@dataclass(frozen=True)
class PlannedValue:
    """What a job's speed is worth, with all that a deadline needs besides.

    Attributes:
        value: As submitted.
        submitted: When it was submitted, in seconds since the epoch.
        target_samples: Samples after which it is complete; 0: no target.
        samples: Samples that it has processed.
    """

    value: SpeedValue = LINEAR_VALUE
    submitted: float = 0.0
    target_samples: int = 0
    samples: int = 0

    @property
    def moves(self) -> bool:
        """Whether it changes with time and progress."""
        return self.value.deadline is not None

    @property
    def due_at(self) -> float | None:
        """When its value changes because its time is over, in seconds since the epoch; None: it never does."""
        deadline = self.value.deadline
        if deadline is None or not self.target_samples:
            return None
        return deadline.seconds + (self.submitted if deadline.after_submission else 0.0)

    def curve(self, now: float, noise: GradientNoise | None = None, min_nodes: int = 1) -> ValueCurve:
        """The value curve at some time.

        Args:
            now: In seconds since the epoch.
            noise: What the training tells of its gradients; None: nothing.
            min_nodes: The job's least scale in nodes.
        """
        if self is LINEAR_PLAN:
            return LINEAR
        if self.value.goodput is not None:
            return goodput_curve(self.value.goodput, noise, min_nodes)
        return curve_at(self.value, self.submitted, now, self.target_samples - self.samples)


LINEAR_PLAN = PlannedValue()


@dataclass(frozen=True)
class PlannableJob(JobTerms, IdentifiedJob):
    """A job as a plan sees it.

    Attributes:
        id: Job identifier.
        current_nodes: Nodes that it is commanded to use.
        owner: Name of the user who submitted it.
        share_weight: Factor of its weight that comes from its owner's fair share.
        member: What it is to its fleet, whose members have GPUs where other jobs have nodes; None: it is in none.
        needs: What it needs of each of its nodes.
        takes_slow: Whether slow nodes are never left out for it: it stands for a fleet, which divides its nodes itself.
        value: What its speed is worth.
        wanted_nodes: Its nodes by the newest plan.
    """

    current_nodes: tuple[str, ...] = ()
    owner: str = ""
    share_weight: float = 1.0
    member: FleetMember | None = None
    needs: NodeNeeds = NO_NEEDS
    takes_slow: bool = False
    value: PlannedValue = LINEAR_PLAN
    wanted_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobCurve:
    """What is known of a job's scaling.

    Attributes:
        points: Scaling curve, ascending in nodes.
        scale_up_seconds: Stall of a growth in seconds.
        scale_down_seconds: Stall of a shrink in seconds.
        stalls: Stalls measured for pairs of scales; they replace the two above.
        known: Whether it rests on anything that is declared or measured.
        sure: Scales at which it is declared, or measured well enough.
        noise: What the training tells of its gradients; None: nothing.
    """

    points: tuple[ScalingPoint, ...]
    scale_up_seconds: float
    scale_down_seconds: float
    stalls: tuple[RescaleStall, ...] = ()
    known: bool = True
    sure: tuple[int, ...] = ()
    noise: GradientNoise | None = None


@dataclass(frozen=True)
class PlanInput:
    """All that a plan depends on.

    Attributes:
        nodes: Idle nodes that are not on their way back to the scheduler, in the source's order.
        jobs: Jobs that may get nodes, in the order of their submission.
        busy_nodes: Nodes of jobs that are being stopped: idle for the scheduler, but not free yet. Without nodes that
            an earlier plan has promised to another job.
        curves: Curve of each job by its identifier.
        pins: Scales that the Profiler asks for, by job identifier.
        growth_seconds: How long growths of jobs have taken lately, from the command to the first batch, in seconds, by
            job identifier.
        changes: How often jobs have changed their scale.
        busy_gpus: GPUs of members of fleets that are being stopped, by NODE#NUMBER, with their fleets.
        resting: Members of fleets that may not have GPUs now and have not ended, with their fleets.
        late_rates: Members of fleets whose rates did not come in time, by their jobs.
        past_deadlines: Jobs whose deadlines have passed.
        unix_seconds: The time, in seconds since the epoch; only deadlines need it.
        stays: How much longer nodes are expected to stay idle by what is known since they were told of, in seconds.
        faults: Jobs that are left out since their figures are wrong, and what is wrong with each. They are not among
            the jobs, and keep the nodes that they have, which are among the busy ones.
    """

    nodes: tuple[PlannableNode, ...] = ()
    jobs: tuple[PlannableJob, ...] = ()
    busy_nodes: frozenset[str] = frozenset()
    curves: Mapping[str, JobCurve] = field(default_factory=dict)
    pins: Mapping[str, ScalePin] = field(default_factory=dict)
    growth_seconds: Mapping[str, float] = field(default_factory=dict)
    changes: ObservedChanges = NOTHING_OBSERVED
    busy_gpus: Mapping[str, str] = field(default_factory=dict)
    resting: Mapping[str, str] = field(default_factory=dict)
    late_rates: Mapping[str, LateRate] = field(default_factory=dict)
    past_deadlines: frozenset[str] = frozenset()
    unix_seconds: float = 0.0
    stays: Mapping[str, float] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)

    def start_seconds(self, job_id: str) -> float:
        """The shortest T_fwd with which a job may well start, in seconds, with the most that booting counts for."""
        stall_seconds = self.curves[job_id].scale_up_seconds
        stall = start_seconds(stall_seconds)
        booting = max(0.0, self.growth_seconds.get(job_id, 0.0) - stall_seconds)
        return min(stall + booting, stall / (1 - MAX_BOOT))

    @property
    def free_to_plan(self) -> tuple[PlannableNode, ...]:
        """Nodes that a plan may hand out."""
        if not self.busy_nodes:
            return self.nodes
        return tuple(node for node in self.nodes if node.name not in self.busy_nodes)

    @property
    def expected_stays(self) -> dict[str, float]:
        """How much longer each node that a plan may hand out is expected to stay idle, in seconds."""
        nodes = self.free_to_plan
        names = list(map(_NAME, nodes))  # without a loop: there may be ten thousand
        return dict(zip(names, map(self.stays.get, names, map(_STAY, nodes)), strict=True))

    @property
    def node_names(self) -> frozenset[str]:
        """The names of the nodes that a plan may hand out."""
        return frozenset(map(_NAME, self.free_to_plan))

    @property
    def planned_jobs(self) -> tuple[PlannableJob, ...]:
        """Jobs whose curve is known; the others get no nodes."""
        return tuple(job for job in self.jobs if job.id in self.curves)


@dataclass(frozen=True)
class PlanProblem:
    """A plan's problem and its parts.

    Attributes:
        whole: The whole problem; it is what a plan shows.
        parts: One part per pool, with the pinned jobs' nodes assigned; each part's `rest` is to be solved.
        terms: What an operator has chosen for the pool of each part.
    """

    whole: AllocationProblem
    parts: tuple[PinnedProblem, ...]
    terms: tuple[PoolTerms, ...] = ()

    @property
    def in_several_parts(self) -> bool:
        """Whether a part is not all of the problem. Jobs without a place in their pool are in no part."""
        return len(self.parts) > 1 or len(self.parts[0].whole.jobs) < len(self.whole.jobs)

    def allocation(self, solved: Sequence[Allocation]) -> Allocation:
        """The solution of the whole problem.

        Args:
            solved: The solution of each part's `rest`, in the order of `parts`.
        """
        return join(self.whole, [part.complete(rest) for part, rest in zip(self.parts, solved, strict=True)])


def plan_problem(plan_input: PlanInput, options: PlannerOptions) -> PlanProblem:
    """The problem of the next plan: built, split by pools, pinned scales assigned."""
    # Of a pool whose nodes are all busy there is nothing to plan.
    names = set(map(_POOL, plan_input.free_to_plan))
    several = not options.span_pools and len(names) > 1
    terms = PoolTerms() if several or not names else terms_of(options.pools, min(names))
    whole = build_problem(plan_input, _with_terms(options, terms))
    whole = replace(whole, max_nodes=terms.max_nodes)
    if several:
        pools = {node.name: node.pool for node in plan_input.nodes}
        parts = split(whole, pools, options.forward, plan_input.changes, options.pools)
        of_parts = tuple(terms_of(options.pools, pools[part.nodes[0]]) if part.nodes else terms for part in parts)
    else:
        parts, of_parts = (within_places(whole, terms.max_parallel),), (terms,)
    return PlanProblem(whole, tuple(apply_pins(part, plan_input.pins) for part in parts), of_parts)


def _with_terms(options: PlannerOptions, terms: PoolTerms) -> PlannerOptions:
    """The options of an installation with one pool, with what differs in this pool."""
    most = terms.max_nodes_per_owner
    if most is not None and options.max_nodes_per_owner:
        most = min(most, options.max_nodes_per_owner)
    return replace(
        options,
        forward=terms.forward or options.forward,
        objective_metric=terms.objective_metric or options.objective_metric,
        max_nodes_per_owner=options.max_nodes_per_owner if most is None else most,
    )


def build_problem(plan_input: PlanInput, options: PlannerOptions) -> AllocationProblem:
    """The allocation problem (BFTrainer §3.1), before pools and pins."""
    nodes = plan_input.free_to_plan
    stays = plan_input.expected_stays
    jobs = plan_input.planned_jobs
    if options.avoid_slow_nodes:
        jobs = without_slow_nodes(jobs, nodes)
    owners = dict.fromkeys(job.owner for job in jobs)
    limit = options.max_nodes_per_owner
    # Who owns the jobs does not matter where all are one owner's and there is no limit.
    named = bool(limit) or len(owners) > 1 or options.pools_limit_owners
    forward = options.forward.of(stays.values(), plan_input.changes, (plan_input.start_seconds(job.id) for job in jobs))
    demands = []
    for job in jobs:
        curve = plan_input.curves[job.id]
        boot = _boot_seconds(plan_input.growth_seconds.get(job.id, 0.0), curve, forward)
        value = job.value.curve(plan_input.unix_seconds, curve.noise, job.min_nodes)
        demands.append(_demand(job, curve, stays, named, boot, value))
    problem = AllocationProblem(
        nodes=tuple(stays),
        forward_seconds=forward,
        jobs=tuple(demands),
        cost_model=options.cost_model,
        objective_metric=options.objective_metric,
        expected_stay_seconds=stays,
        owner_limits=dict.fromkeys(owners, limit) if limit else {},
        paths=_paths(nodes, jobs),
    )
    if not any(job.needs for job in jobs):
        return problem
    return with_kinds(problem, [(node.name, node.traits) for node in nodes], [job.needs for job in jobs])


def without_slow_nodes(jobs: Sequence[PlannableJob], nodes: Sequence[PlannableNode]) -> tuple[PlannableJob, ...]:
    """The jobs, of which those of more than one node need nodes that are not slow, and give up those that are.

    A job of which the other nodes are too few takes slow ones, too: it would not run at all.
    """
    slow = {node.name for node in nodes if node.slow}
    if not slow:
        return tuple(jobs)
    census = TraitCensus({node.name: node.traits for node in nodes})

    def avoiding(job: PlannableJob) -> PlannableJob:
        needs = replace(job.needs, well=True)
        if job.max_nodes < 2 or job.takes_slow or job.member is not None or census.count(needs) < job.min_nodes:
            return job
        return replace(job, needs=needs, current_nodes=tuple(name for name in job.current_nodes if name not in slow))

    return tuple(map(avoiding, jobs))


def _paths(nodes: Sequence[PlannableNode], jobs: Sequence[PlannableJob]) -> dict[str, GroupPath]:
    """Topology paths of nodes; empty where no job has a preference."""
    if all(job.topology is TopologyPreference.NONE for job in jobs):
        return {}
    return {node.name: node.topology for node in nodes if node.topology}


def _boot_seconds(growth_seconds: float, curve: JobCurve, forward_seconds: float) -> float:
    """How long new workers boot, in seconds: what a growth takes, less its stall.

    It counts as half of T_fwd at most: a job that boots slowly would otherwise never start.
    """
    return max(0.0, min(growth_seconds - curve.scale_up_seconds, MAX_BOOT * forward_seconds))


_remembered: MemoryByJob[JobDemand] = MemoryByJob()
_faults: MemoryByJob[str] = MemoryByJob()


def faults_in(jobs: Iterable[PlannableJob], curves: Mapping[str, JobCurve]) -> dict[str, str]:
    """The jobs with a known curve whose figures are wrong, and what is wrong with each.

    Wrong are figures that no problem may have, and nodes that an earlier job of these holds.
    """
    known = [job for job in jobs if job.id in curves]
    faults = {
        job.id: _faults.value(job.id, (job, curves[job.id]), partial(_fault, job, curves[job.id])) for job in known
    }
    wrong = {name: fault for name, fault in faults.items() if fault}
    held = list(chain.from_iterable(job.current_nodes for job in known))
    if len(set(held)) == len(held):
        return wrong  # and no loop over ten thousand nodes says which one is wrong
    holders: dict[str, str] = {}
    for job in known:
        doubles = [node for node in job.current_nodes if holders.setdefault(node, job.id) != job.id]
        if doubles:
            wrong.setdefault(job.id, f"job.current_nodes: {doubles[0]} is one of job {holders[doubles[0]]}")
    return wrong


def _fault(job: PlannableJob, curve: JobCurve) -> str:
    if len(set(job.current_nodes)) < len(job.current_nodes):
        return "job.current_nodes: each node once"
    return fault_of(_made_demand(job, curve, job.current_nodes, True, 0.0, job.value.value.curve))


def _demand(
    job: PlannableJob, curve: JobCurve, idle: Mapping[str, float], named: bool, boot_seconds: float, value: ValueCurve
) -> JobDemand:
    """A job of the problem: the same object as in the problem before where nothing of it has changed.

    What follows from a job is remembered by what follows from that object: its check, its rates, its message.
    """
    current = job.current_nodes
    if not all(map(idle.__contains__, current)):
        current = tuple(node for node in current if node in idle)
    terms = job, curve, current, named, boot_seconds, value
    return _remembered.value(job.id, terms, lambda: _made_demand(job, curve, current, named, boot_seconds, value))


def _made_demand(
    job: PlannableJob, curve: JobCurve, current: tuple[str, ...], named: bool, boot_seconds: float, value: ValueCurve
) -> JobDemand:
    return JobDemand(
        **job.terms(weight=job.weight * job.share_weight),
        id=job.id,
        scale_up_seconds=curve.scale_up_seconds,
        scale_down_seconds=curve.scale_down_seconds,
        curve=curve.points,
        stalls=curve.stalls,
        current_nodes=current,
        owner=job.owner if named else "",
        share_weight=job.share_weight,
        boot_seconds=boot_seconds,
        value=value,
        wanted_nodes=job.wanted_nodes if job.member is None and job.wanted_nodes != job.current_nodes else (),
    )
