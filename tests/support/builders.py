"""Values and messages that are valid as they are: tests name what matters to them, as keywords, and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from malletrain.allocator.machine.cluster_cache import CachedJob
from malletrain.allocator.problem.allocation_problem import JobDemand
from malletrain.allocator.problem.planner import PlannableJob, PlannableNode
from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScalingPoint
from malletrain.observer.job_facts import JobFact
from malletrain.v1 import resources_pb2


def spec_message(*command: str, **fields: Any) -> resources_pb2.JobSpec:
    """What somebody submits: a command for one to four nodes."""
    given = {"name": "job", "command": command or ("sleep", "60"), "working_directory": "/"}
    return resources_pb2.JobSpec(**{**given, "min_nodes": 1, "max_nodes": 4, **fields})


def job_message(job_id: str = "j000001", *nodes: str, **fields: Any) -> resources_pb2.Job:
    """A job that runs, as JobManager tells of it.

    Args:
        job_id: Its identifier.
        *nodes: Those that it is commanded to use, and trains on.
        **fields: Other fields of it, or of its spec.
    """
    given = {
        "state": resources_pb2.JOB_STATE_RUNNING,
        "admitted": True,
        "commanded_nodes": nodes,
        "confirmed_nodes": nodes,
        **fields,
    }
    own = {name: value for name, value in given.items() if name in resources_pb2.Job.DESCRIPTOR.fields_by_name}
    of_spec = {name: value for name, value in given.items() if name not in own}
    return resources_pb2.Job(**{"id": job_id, "spec": spec_message(**of_spec), **own})


def job_spec(low: int = 1, high: int = 4, **fields: Any) -> JobSpec:
    """The spec of JobManager's own for a job of low to high nodes."""
    given = {"name": "job", "command": ("true",), "working_directory": "/", "min_nodes": low, "max_nodes": high}
    return JobSpec(**{**given, **fields})


def job(number: int = 1, *nodes: str, spec: JobSpec | None = None, **fields: Any) -> Job:
    """A job of JobManager's own that runs on nodes; without any it waits."""
    state = JobState.RUNNING if nodes else JobState.WAITING
    given = {"state": state, "reason": "", "create_time": 0.0, "update_time": 0.0}
    held = {"commanded": nodes, "confirmed": nodes, "held": nodes}
    return Job(number=number, spec=spec or job_spec(), **{**given, **held, **fields})


def demand(
    name: str = "a",
    *held: str,
    low: int = 1,
    high: int = 8,
    rate: float = 100.0,
    power: float = 1.0,
    curve: tuple[ScalingPoint, ...] | None = None,
    **fields: Any,
) -> JobDemand:
    """A job of an allocation problem, which rescales at once unless fields say otherwise.

    Args:
        name: Its identifier.
        *held: Nodes that it has.
        low: Its least scale in nodes.
        high: Its largest scale in nodes.
        rate: What it makes on one node, in samples/s.
        power: It makes rate × nodes^power samples/s; with 1, each node adds as much as the first.
        curve: Its scaling curve, in place of that of rate and power.
        **fields: Other fields of it.
    """
    if curve is None:
        scales = sorted({1, high}) if power == 1.0 else range(1, high + 1)
        curve = tuple(ScalingPoint(nodes, rate * nodes**power) for nodes in scales)
    return JobDemand(name, low, high, curve, current_nodes=held, **fields)


def plannable(name: str = "a", *held: str, low: int = 1, high: int = 4, **fields: Any) -> PlannableJob:
    """A job of low to high nodes that a plan may give nodes to, and that is commanded to use those that it holds."""
    return PlannableJob(name, low, high, current_nodes=held, **fields)


def plannable_nodes(*names: str, **fields: Any) -> tuple[PlannableNode, ...]:
    """Idle nodes that are alike but for their names, of which no more is known than fields say."""
    return tuple(PlannableNode(name, **fields) for name in names)


def cached_job(
    name: str,
    *commanded: str,
    confirmed: Collection[str] | None = None,
    max_nodes: int = 4,
    wanted_nodes: tuple[str, ...] = (),
    **fields: Any,
) -> CachedJob:
    """A job of the Allocator's own that runs on nodes; without any it waits."""
    given = {
        "state": JobState.RUNNING if commanded else JobState.WAITING,
        "admitted": True,
        "confirmed_nodes": frozenset(commanded if confirmed is None else confirmed),
    }
    plan_job = plannable(name, *commanded, high=max_nodes, wanted_nodes=wanted_nodes)
    return CachedJob(plan_job, **{**given, **fields})


def job_fact(job_id: str = "j1", *nodes: str, **fields: Any) -> JobFact:
    """A job of the observer's that runs on nodes; without any it waits."""
    given = {
        "state": "RUNNING" if nodes else "WAITING",
        "admitted": True,
        "commanded": frozenset(nodes),
        "confirmed": frozenset(nodes),
        "max_nodes": 4,
        "target_samples": 1000,
    }
    return JobFact(**{"id": job_id, **given, **fields})
