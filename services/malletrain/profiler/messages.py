"""Between the contract's messages and the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from malletrain.profiler.book import JobFacts, JobProfile, Measurements
from malletrain.profiler.curve import PairStall, Source
from malletrain.profiler.desk import JobView, Order
from malletrain.profiler.knots import Knot
from malletrain.profiler.modes import Mode
from malletrain.profiler.runs import Run
from malletrain.profiler.sizes import permitted_scales
from malletrain.v1 import monitor_pb2, profiler_pb2, resources_pb2

FINAL_STATES = frozenset(
    (
        resources_pb2.JOB_STATE_COMPLETED,
        resources_pb2.JOB_STATE_FAILED,
        resources_pb2.JOB_STATE_CANCELLED,
    )
)
"""States of jobs that never train again."""

_MODES = {
    resources_pb2.PROFILE_MODE_AUTO: Mode.AUTO,
    resources_pb2.PROFILE_MODE_ALWAYS: Mode.ALWAYS,
    resources_pb2.PROFILE_MODE_NEVER: Mode.NEVER,
}

_SOURCES = {
    Source.PRIOR: profiler_pb2.CURVE_SOURCE_PRIOR,
    Source.DECLARED: profiler_pb2.CURVE_SOURCE_DECLARED,
    Source.MEASURED: profiler_pb2.CURVE_SOURCE_MEASURED,
    Source.EXTRAPOLATED: profiler_pb2.CURVE_SOURCE_EXTRAPOLATED,
    Source.FAMILY: profiler_pb2.CURVE_SOURCE_FAMILY,
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
        permitted_nodes=tuple(spec.permitted_nodes),
        weight=spec.weight or 1.0,
        mode=_MODES.get(spec.profile),
        family=spec.family,
    )


def view_of(job: resources_pb2.Job, now: float, pools: Mapping[str, str]) -> JobView:
    """A job as runs see it.

    Args:
        job: The job.
        now: Seconds since the epoch.
        pools: Pool of each idle node.
    """
    wanted, commanded, confirmed = set(job.wanted_nodes), set(job.commanded_nodes), set(job.confirmed_nodes)
    trains = job.state == resources_pb2.JOB_STATE_RUNNING and commanded == confirmed
    rests = job.state == resources_pb2.JOB_STATE_WAITING and not commanded
    backs_off = job.HasField("not_before") and job.not_before.ToNanoseconds() / 1e9 > now
    return JobView(
        job_id=job.id,
        scales=tuple(permitted_scales(job.spec.min_nodes, job.spec.max_nodes, job.spec.permitted_nodes)),
        nodes=len(commanded),
        steady=(trains or rests) and wanted == commanded,
        available=job.state != resources_pb2.JOB_STATE_STOPPING and not backs_off,
        pool=_pool_of(job, pools),
    )


def _pool_of(job: resources_pb2.Job, pools: Mapping[str, str]) -> str | None:
    """Where most of its nodes are; the only one there is where it has none."""
    own = Counter(pools[node] for node in job.commanded_nodes if node in pools)
    if own:
        return own.most_common(1)[0][0]
    names = set(pools.values())
    return next(iter(names)) if len(names) == 1 else None


def measurements_of(record: monitor_pb2.ScalingRecord) -> Measurements:
    """What Monitor has measured of a job."""
    rescales = (PairStall(entry.from_nodes, entry.to_nodes, entry.stall_seconds) for entry in record.rescales)
    points = (
        Knot(point.nodes, point.rate, point.steps, point.relative_error, point.unix_seconds) for point in record.points
    )
    return Measurements(
        rescales=tuple(rescales),
        points=tuple(points),
        scale_up_seconds=record.scale_up_seconds if record.HasField("scale_up_seconds") else None,
        scale_down_seconds=record.scale_down_seconds if record.HasField("scale_down_seconds") else None,
    )


def profile_message(
    profile: JobProfile, order: Order | None = None, until: float = 0.0, run: Run | None = None, profiled: str = ""
) -> profiler_pb2.Profile:
    """A profile for the wire.

    Args:
        profile: What the allocator should believe.
        order: What it is asked to do with the job.
        until: When that runs out, in seconds since the epoch.
        run: The newest measuring of the curve.
        profiled: Job that the order is for.
    """
    hold = None
    if order is not None:
        hold = profiler_pb2.Hold(nodes=order.nodes, grow=order.grow, until_unix_seconds=until, profiled_job_id=profiled)
    return profiler_pb2.Profile(
        job_id=profile.job_id,
        points=[
            profiler_pb2.ProfilePoint(
                nodes=point.nodes,
                rate=point.rate,
                source=_SOURCES[point.source],
                relative_error=point.error,
                steps=point.steps,
                unix_seconds=point.unix_seconds,
            )
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
        hold=hold,
        run=None if run is None else run_message(run),
        fit=profile.fit,
        family=profile.family,
    )


def run_message(run: Run) -> profiler_pb2.ProfileRun:
    """A run for the wire."""
    return profiler_pb2.ProfileRun(
        state=profiler_pb2.ProfileState.Value(f"PROFILE_STATE_{run.state.value}"),
        reason=run.reason,
        visited_nodes=run.visited,
        growths=run.growths,
        shrinks=run.shrinks,
        node_seconds=run.node_seconds,
        stalled_node_seconds=run.stalled_node_seconds,
        donor_job_ids=run.donors,
        seconds=run.seconds,
    )
