"""From messages about jobs to facts: all that `malletrain jobs` needs of `malletrain.observer.intake`.

What not every viewer may see is left out here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malletrain.observer.job_facts import CurveFact, JobFact, PointFact, ProgressFact
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import monitor_pb2, profiler_pb2, resources_pb2


def enum_name(name: Callable[[Any], str], value: int, prefix: str) -> str:
    """Name of an enum's value in small letters without its prefix; `unknown` for one of a later version."""
    try:
        return name(value).removeprefix(prefix).lower()
    except ValueError:
        return "unknown"


def reason_in_words(code: resources_pb2.JobReason.ValueType) -> str:
    """A reason code in plain words; empty where there is none."""
    name = enum_name(resources_pb2.JobReason.Name, code, "JOB_REASON_")
    return "" if name == "unspecified" else name.replace("_", " ")


def needs_in_words(message: resources_pb2.NodeNeeds) -> str:
    """What a job needs of each of its nodes, for people; empty: any node suits."""
    if not message.ByteSize():
        return ""
    from malletrain.model.node_needs import in_words  # most jobs need nothing, and `malletrain jobs` starts sooner
    from malletrain.runtime.node_needs_messages import needs_from_proto

    return in_words(needs_from_proto(message))


def job_fact(job: resources_pb2.Job) -> JobFact:
    """A job, without what only its owner may see."""
    spec = job.spec
    return JobFact(
        id=job.id,
        name=spec.name,
        owner=job.owner,
        state=enum_name(resources_pb2.JobState.Name, job.state, "JOB_STATE_").upper(),
        reason=reason_in_words(job.reason_code),
        admitted=job.admitted,
        wanted=len(job.wanted_nodes),
        commanded=frozenset(job.commanded_nodes),
        confirmed=frozenset(job.confirmed_nodes),
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        permitted=tuple(spec.permitted_nodes),
        needs=needs_in_words(spec.needs),
        target_samples=spec.target_samples,
        samples=job.samples,
        samples_known=job.samples_known or not job.samples,
        rescales=job.rescales,
        preemptions=job.preemptions,
        restarts=job.restarts,
        submitted=unix_seconds(job.create_time),
        ended=unix_seconds(job.end_time) if job.HasField("end_time") else None,
        not_before=unix_seconds(job.not_before) if job.HasField("not_before") else None,
        changed=unix_seconds(job.update_time),
        fleet=job.fleet_id,
        array=job.array_id,
        fleet_gpus=spec.fleet.gpus_per_node,
    )


def progress_fact(progress: monitor_pb2.Progress) -> ProgressFact:
    """How far a job is."""
    return ProgressFact(
        progress.job_id,
        progress.samples,
        progress.samples_lost,
        progress.rate,
        progress.nodes,
        progress.stalled,
        progress.phase.name,
        progress.phase.seconds,
        "; ".join(
            f"rank {worker.rank} on {worker.node}, {worker.share:.0%} longer for its own part of a step"
            for worker in progress.slow_workers
        ),
    )


def curve_fact(profile: profiler_pb2.Profile) -> CurveFact:
    """The curve of a job."""
    points = tuple(
        PointFact(
            point.nodes,
            point.rate,
            enum_name(profiler_pb2.CurveSource.Name, point.source, "CURVE_SOURCE_"),
            point.relative_error,
            point.steps,
        )
        for point in profile.points
    )
    line = tuple((point.nodes, point.rate) for point in profile.fit_line)
    return CurveFact(profile.job_id, points, profile.scale_up_seconds, profile.scale_down_seconds, profile.fit, line)
