"""Plans with one fleet of small members, checked as JobManager checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from malletrain.allocator.fleets.members import FleetDecision, FleetMember
from malletrain.allocator.fleets.planning import FleetPlanning, assignments, with_fleets
from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob, PlannableNode, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.validation import validate
from malletrain.allocator.solvers.solving import solve
from malletrain.common.gpus import node_of
from malletrain.fleet.problem import FleetPlanner
from malletrain.fleet.spec import FleetSpec
from malletrain.model.scaling import ScalingPoint

FORWARD = ForwardTime(120.0)
OPTIONS = PlannerOptions(FORWARD, CostModel.STALL, ObjectiveMetric.THROUGHPUT)
TERMS = FleetSpec(planner=FleetPlanner.FLEET, max_nodes=4, gpus_per_node=2, samples_per_epoch=1000.0)
RATES = {"j1": 100.0, "j2": 55.0, "j3": 95.0, "j4": 20.0}


def curve(rate: float, known: bool = True, sure: Sequence[int] = (1, 2, 4, 8)) -> JobCurve:
    points = tuple(ScalingPoint(count, rate * count**0.9) for count in (1, 2, 4, 8))
    return JobCurve(points, 1.0, 1.0, known=known, sure=tuple(sure))


def member(
    job_id: str, *gpus: str, terms: FleetSpec = TERMS, samples: int = 0, profiled: bool = False, weight: float = 1.0
) -> PlannableJob:
    """A member of the fleet f1 that needs ten epochs."""
    own = FleetMember("f1", f"model {job_id}", terms, samples, 10_000, profiled)
    return PlannableJob(job_id, 1, 8, current_nodes=gpus, weight=weight, member=own)


def plan_input(
    jobs: Sequence[PlannableJob], nodes: Sequence[str] = ("n1", "n2", "n3", "n4"), **more: object
) -> PlanInput:
    curves = {job.id: curve(RATES.get(job.id, 50.0)) for job in jobs}
    found = PlanInput(tuple(map(PlannableNode, nodes)), tuple(jobs), curves=curves)
    return replace(found, **more)  # type: ignore[arg-type]


def planned(
    found: PlanInput, before: FleetDecision | None = None
) -> tuple[FleetPlanning, dict[str, FleetDecision], dict[str, tuple[str, ...]]]:
    """A whole plan: the fleets, how each is divided, and what every job gets."""
    planning = with_fleets(found, FORWARD, {before.fleet_id: before} if before else {})
    problem = plan_problem(planning.plan_input, OPTIONS)
    validate(problem.whole)
    allocation = problem.allocation([solve(part.rest) for part in problem.parts])
    decisions = planning.decide(allocation)
    parts = {entry.job_id: entry.nodes for entry in assignments(allocation, decisions)}
    check(found, parts)
    return planning, {decision.fleet_id: decision for decision in decisions}, parts


def check(found: PlanInput, parts: Mapping[str, tuple[str, ...]]) -> None:
    """What JobManager asks of every plan."""
    gpus = [name for names in parts.values() for name in names]
    assert len(set(gpus)) == len(gpus)
    jobs = {job.id: job for job in found.jobs}
    nodes: dict[str, set[str]] = {}
    for job_id, names in parts.items():
        before, now = set(jobs[job_id].current_nodes), set(names)
        own = jobs[job_id].member
        assert own or before <= now or now <= before, "a job gains nodes or loses some, not both"
        for name in names:
            nodes.setdefault(node_of(name), set()).add(own.fleet_id if own else job_id)
    assert set(nodes) <= {node.name for node in found.free_to_plan}
    assert all(len(owners) == 1 for owners in nodes.values()), "a node belongs to one job, or to members of one fleet"


def after(found: PlanInput, parts: Mapping[str, tuple[str, ...]], *ended: str) -> PlanInput:
    """The present once a plan is carried out and some jobs have ended."""
    jobs = tuple(
        replace(job, current_nodes=parts.get(job.id, job.current_nodes)) for job in found.jobs if job.id not in ended
    )
    return replace(found, jobs=jobs)
