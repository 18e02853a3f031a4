"""What the jobs of a moment can train and do train, at the rates of their curves. Pure.

Not `malletrain.model.node_use`, which says of each node what it is used for: here it counts on how many of its nodes a
job trains, and how many there are for all jobs whose curves are known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from malletrain.allocator.machine.cluster_cache import CachedJob, ClusterCache
from malletrain.allocator.problem.allocation_problem import JobDemand
from malletrain.allocator.problem.objective import rates
from malletrain.allocator.utilization.definition import MINUTE_S, trained_scale
from malletrain.common.gpus import node_of
from malletrain.model.job_state import JobState
from malletrain.model.job_terms import JobTerms
from malletrain.model.scaling import ScalingPoint

_MAX_SCALES = 10_000
"""Nodes beside a fleet that a job which takes whole nodes can have, as scales are listed then."""


@dataclass(frozen=True, slots=True)
class JobPresent:
    """A job that may have nodes.

    Attributes:
        id: Identifier.
        terms: Its scales; in GPUs for a member of a fleet.
        curve: Its scaling curve, as it is believed; empty: not known.
        in_fleet: Whether it is a member of a fleet.
        trains_on: Nodes, or GPUs, on which its workers train.
    """

    id: str
    terms: JobTerms
    curve: tuple[ScalingPoint, ...]
    in_fleet: bool
    trains_on: frozenset[str]


@dataclass(frozen=True, slots=True)
class PresentUse:
    """What idle nodes are used for at a moment; as the fields of `definition.UseStep`."""

    nodes: int
    jobs: tuple[JobDemand, ...]
    rates: tuple[float, ...]


@dataclass(slots=True)
class _Remembered:
    """What is worked out for a job: its demand, and samples per second by the nodes that it has."""

    traits: tuple[object, ...]
    curve: tuple[ScalingPoint, ...]
    demand: JobDemand | None
    rates: dict[int, float] = field(default_factory=dict)

    @property
    def none(self) -> bool:
        """Whether its curve was not known."""
        return self.demand is None


class PresentUses:
    """Builds the `PresentUse` of each moment. While the jobs are the same, `jobs` is the same tuple.

    The curve of a job is the one that is believed when the minute begins, or when the job comes: curves change with
    every measurement, and each change would take anew how well all jobs could have trained.
    """

    def __init__(self) -> None:
        self._remembered: dict[str, _Remembered] = {}
        self._minute = 0.0
        self._jobs: tuple[JobDemand, ...] = ()

    def of(self, now: float, idle: Collection[str], gpus_per_node: int, jobs: Iterable[JobPresent]) -> PresentUse:
        """What idle nodes are used for now.

        Jobs whose curve is not known count nowhere, nor do the nodes on which they train.

        Args:
            now: Seconds since the epoch.
            idle: Names of the idle nodes.
            gpus_per_node: GPUs of a node, at least 1: scales are counted in these where a fleet trains.
            jobs: Jobs that may have nodes, in the order of their submission.
        """
        # A set: its intersection with a job's nodes looks at these only, that with the names of a dictionary at all.
        idle, present, minute = frozenset(idle), list(jobs), now // MINUTE_S
        believed, self._minute = minute != self._minute, minute
        unit = gpus_per_node if any(job.in_fleet for job in present) else 1
        units, demands, job_rates = unit * len(idle), list[JobDemand](), list[float]()
        remembered: dict[str, _Remembered] = {}
        for job in present:
            held = (
                sum(node_of(name) in idle for name in job.trains_on)
                if job.in_fleet
                else unit * len(job.trains_on.intersection(idle))
            )
            known = remembered[job.id] = self._known(job, unit, believed)
            if known.demand is None:
                units -= held
                continue
            if held not in known.rates:
                known.rates[held] = float(rates(known.demand, [trained_scale(known.demand, held)])[0])
            demands.append(known.demand)
            job_rates.append(known.rates[held])
        self._remembered = remembered
        same = len(demands) == len(self._jobs) and all(map(_is, demands, self._jobs))
        self._jobs = self._jobs if same else tuple(demands)
        return PresentUse(max(0, units), self._jobs, tuple(job_rates))

    def _known(self, job: JobPresent, unit: int, believed: bool) -> _Remembered:
        """What is worked out for a job; with its present curve only where that counts from now on."""
        terms = job.terms
        traits = (terms.min_nodes, terms.max_nodes, terms.permitted_nodes, job.in_fleet, unit)
        known = self._remembered.get(job.id)
        if known is not None and known.traits == traits and (known.curve == job.curve or not (believed or known.none)):
            return known
        return _Remembered(traits, job.curve, demand_of(job, unit))


def _is(one: JobDemand, other: JobDemand) -> bool:
    return one is other


def demand_of(job: JobPresent, unit: int = 1) -> JobDemand | None:
    """A job as if rescaling were free and all weighed the same; None where its curve is not known.

    Args:
        unit: Units of a node that scales are counted in. Jobs that are no members of a fleet take whole nodes.
    """
    unit = 1 if job.in_fleet else unit
    points = tuple(ScalingPoint(point.nodes * unit, point.rate) for point in job.curve if point.nodes > 0)
    if not points or points[0].rate <= 0:
        return None
    terms, permitted = job.terms, job.terms.permitted_nodes
    if unit > 1 and not permitted:
        most = min(terms.max_nodes, points[-1].nodes // unit, _MAX_SCALES)
        permitted = tuple(range(terms.min_nodes, most + 1))
    scales = tuple(unit * scale for scale in permitted)
    return JobDemand(job.id, unit * terms.min_nodes, unit * terms.max_nodes, points, permitted_nodes=scales)


_TRAINING = (JobState.RUNNING, JobState.RESCALING)


def present_use(cluster: ClusterCache, uses: PresentUses, now: float) -> PresentUse | None:
    """What idle nodes are used for at `now`, in seconds since the epoch; None before nodes and jobs are known."""
    if not cluster.complete:
        return None
    nodes = {node.name: node.gpus for node in cluster.nodes}
    known_gpus = [job.plannable.member.terms.gpus_per_node for job in cluster.jobs if job.plannable.member is not None]
    most = max(nodes.values(), default=1)
    gpus = max((count or most for count in known_gpus), default=1)
    return uses.of(now, nodes.keys(), max(1, gpus), _jobs(cluster, now))


def _jobs(cluster: ClusterCache, now: float) -> Iterator[JobPresent]:
    for job in sorted(cluster.jobs, key=lambda job: job.plannable.id):
        if job.may_be_planned(now):
            plannable, curve = job.plannable, cluster.curve_of(job.plannable.id)
            yield JobPresent(
                id=plannable.id,
                terms=plannable,
                curve=curve.points if curve is not None else (),
                in_fleet=plannable.member is not None,
                trains_on=_trains_on(job),
            )


def _trains_on(job: CachedJob) -> frozenset[str]:
    """The job's nodes that its workers have confirmed and that it may keep; none before its first start has ended."""
    return job.confirmed_nodes.intersection(job.plannable.current_nodes) if job.state in _TRAINING else frozenset()
