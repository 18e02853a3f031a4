"""Protocol buffers in, values of the pure core out, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from malletrain.model.scaling import RescaleStall, permitted_scales
from malletrain.profiler.curve_estimator import JobDeclaration, JobMeasurements, JobProfile
from malletrain.profiler.points import CurvePoint, CurveSource
from malletrain.profiler.profile_scheduler import JobView, ProfilingState
from malletrain.profiler.runs import ProfileRun
from malletrain.profiler.settings import ProfilingMode
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import monitor_pb2, profiler_pb2, resources_pb2

_MODES = {
    resources_pb2.PROFILE_MODE_AUTO: ProfilingMode.AUTO,
    resources_pb2.PROFILE_MODE_ALWAYS: ProfilingMode.ALWAYS,
    resources_pb2.PROFILE_MODE_NEVER: ProfilingMode.NEVER,
}

_SOURCES = {
    CurveSource.PRIOR: profiler_pb2.CURVE_SOURCE_PRIOR,
    CurveSource.DECLARED: profiler_pb2.CURVE_SOURCE_DECLARED,
    CurveSource.MEASURED: profiler_pb2.CURVE_SOURCE_MEASURED,
    CurveSource.EXTRAPOLATED: profiler_pb2.CURVE_SOURCE_EXTRAPOLATED,
    CurveSource.FAMILY: profiler_pb2.CURVE_SOURCE_FAMILY,
}


def declaration_of(job: resources_pb2.Job) -> JobDeclaration:
    """What the user has declared of a job."""
    spec = job.spec
    return JobDeclaration(
        job_id=job.id,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        curve=tuple(CurvePoint(point.nodes, point.rate, source=CurveSource.DECLARED) for point in spec.curve),
        scale_up_seconds=spec.scale_up_seconds if spec.HasField("scale_up_seconds") else None,
        scale_down_seconds=spec.scale_down_seconds if spec.HasField("scale_down_seconds") else None,
        permitted_nodes=tuple(spec.permitted_nodes),
        weight=spec.weight or 1.0,
        mode=_MODES.get(spec.profile),
        family=spec.family,
        fleet_id=job.fleet_id,
    )


def view_of(job: resources_pb2.Job, now: float, pools: Mapping[str, str]) -> JobView:
    """A job as the profile scheduler sees it.

    Args:
        job: The job.
        now: Seconds since the epoch.
        pools: Pool of each idle node.
    """
    wanted, commanded, confirmed = set(job.wanted_nodes), set(job.commanded_nodes), set(job.confirmed_nodes)
    trains = job.state == resources_pb2.JOB_STATE_RUNNING and commanded == confirmed
    rests = job.state == resources_pb2.JOB_STATE_WAITING and not commanded
    backs_off = job.HasField("not_before") and unix_seconds(job.not_before) > now
    return JobView(
        job_id=job.id,
        scales=tuple(permitted_scales(job.spec.min_nodes, job.spec.max_nodes, job.spec.permitted_nodes)),
        nodes=len(commanded),
        steady=(trains or rests) and wanted == commanded,
        available=job.state != resources_pb2.JOB_STATE_STOPPING and not backs_off,
        pool=pool_of(job.commanded_nodes, pools, only_pool(pools)),
    )


def pool_of(nodes: Sequence[str], pools: Mapping[str, str], only: str | None) -> str | None:
    """The pool of most of a job's nodes; for a job without nodes the only pool.

    Args:
        nodes: Nodes of the job.
        pools: Pool of each idle node.
        only: The only pool; None where there are several, or none.
    """
    own = Counter(pools[node] for node in nodes if node in pools)
    return own.most_common(1)[0][0] if own else only


def only_pool(pools: Mapping[str, str]) -> str | None:
    """The pool of all nodes; None where there are several, or none."""
    names = set(pools.values())
    return next(iter(names)) if len(names) == 1 else None


def measurements_of(record: monitor_pb2.ScalingRecord) -> JobMeasurements:
    """What Monitor has measured of a job."""
    rescales = (RescaleStall(entry.from_nodes, entry.to_nodes, entry.stall_seconds) for entry in record.rescales)
    points = (
        CurvePoint(point.nodes, point.rate, point.steps, point.relative_error, point.unix_seconds)
        for point in record.points
    )
    return JobMeasurements(
        points=tuple(points),
        scale_up_seconds=record.scale_up_seconds if record.HasField("scale_up_seconds") else None,
        scale_down_seconds=record.scale_down_seconds if record.HasField("scale_down_seconds") else None,
        rescales=tuple(rescales),
    )


def profile_message(profile: JobProfile, state: ProfilingState) -> profiler_pb2.Profile:
    """All that is told of a job: its curve and costs, what the allocator is asked to do, and the newest run.

    Args:
        profile: Curve and costs.
        state: All runs and requests.
    """
    run = state.runs.get(profile.job_id)
    return profiler_pb2.Profile(
        job_id=profile.job_id,
        points=[_point_message(point) for point in profile.points],
        scale_up_seconds=profile.scale_up.seconds,
        scale_up_source=_SOURCES[profile.scale_up.source],
        scale_down_seconds=profile.scale_down.seconds,
        scale_down_source=_SOURCES[profile.scale_down.source],
        stalls=[
            resources_pb2.RescaleStall(from_nodes=s.from_nodes, to_nodes=s.to_nodes, seconds=s.seconds)
            for s in profile.stalls
        ],
        hold=_request_message(profile.job_id, state),
        run=None if run is None else _run_message(run),
        fit=profile.fit,
        family=profile.family,
        fit_line=[resources_pb2.ScalingPoint(nodes=nodes, rate=rate) for nodes, rate in profile.fit_line],
    )


def _point_message(point: CurvePoint) -> profiler_pb2.ProfilePoint:
    return profiler_pb2.ProfilePoint(
        nodes=point.nodes,
        rate=point.rate,
        source=_SOURCES[point.source],
        relative_error=point.relative_error,
        steps=point.steps,
        unix_seconds=point.unix_seconds,
    )


def _request_message(job_id: str, state: ProfilingState) -> profiler_pb2.Hold | None:
    request, active = state.requests.get(job_id), state.active
    if request is None or active is None:
        return None
    return profiler_pb2.Hold(
        nodes=request.nodes,
        grow=request.grow,
        until_unix_seconds=state.requests_until,
        profiled_job_id=active.job_id,
    )


def _run_message(run: ProfileRun) -> profiler_pb2.ProfileRun:
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
