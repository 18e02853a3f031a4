"""Between the contract's messages and the core."""

from __future__ import annotations

from malletrain.profiler.book import JobFacts, JobProfile, Measurements
from malletrain.profiler.curve import Knot, PairStall, Source
from malletrain.v1 import monitor_pb2, profiler_pb2, resources_pb2

FINAL_STATES = frozenset(
    (
        resources_pb2.JOB_STATE_COMPLETED,
        resources_pb2.JOB_STATE_FAILED,
        resources_pb2.JOB_STATE_CANCELLED,
    )
)
"""States of jobs that never train again."""

_SOURCES = {
    Source.PRIOR: profiler_pb2.CURVE_SOURCE_PRIOR,
    Source.DECLARED: profiler_pb2.CURVE_SOURCE_DECLARED,
    Source.MEASURED: profiler_pb2.CURVE_SOURCE_MEASURED,
    Source.EXTRAPOLATED: profiler_pb2.CURVE_SOURCE_EXTRAPOLATED,
}


def facts_of(job: resources_pb2.Job) -> JobFacts:
    """What the user has declared of a job."""
    spec = job.spec
    return JobFacts(
        job_id=job.id,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        curve=tuple(Knot(point.nodes, point.rate) for point in spec.curve),
        scale_up_seconds=spec.scale_up_seconds if spec.HasField("scale_up_seconds") else None,
        scale_down_seconds=spec.scale_down_seconds if spec.HasField("scale_down_seconds") else None,
    )


def measurements_of(record: monitor_pb2.ScalingRecord) -> Measurements:
    """What Monitor has measured of a job."""
    rescales = (PairStall(entry.from_nodes, entry.to_nodes, entry.stall_seconds) for entry in record.rescales)
    return Measurements(
        rescales=tuple(rescales),
        points=tuple(Knot(point.nodes, point.rate, point.steps) for point in record.points),
        scale_up_seconds=record.scale_up_seconds if record.HasField("scale_up_seconds") else None,
        scale_down_seconds=record.scale_down_seconds if record.HasField("scale_down_seconds") else None,
    )


def profile_message(profile: JobProfile) -> profiler_pb2.Profile:
    """A profile for the wire."""
    return profiler_pb2.Profile(
        job_id=profile.job_id,
        points=[
            profiler_pb2.ProfilePoint(nodes=point.nodes, rate=point.rate, source=_SOURCES[point.source])
            for point in profile.points
        ],
        scale_up_seconds=profile.scale_up.seconds,
        scale_up_source=_SOURCES[profile.scale_up.source],
        scale_down_seconds=profile.scale_down.seconds,
        scale_down_source=_SOURCES[profile.scale_down.source],
        stalls=[
            resources_pb2.RescaleStall(from_nodes=s.from_nodes, to_nodes=s.to_nodes, seconds=s.seconds)
            for s in profile.stalls
        ],
    )
