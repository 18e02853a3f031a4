"""Protocol buffers in, values of the pure core out, and back."""

from __future__ import annotations

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration, JobMeasurements, JobProfile
from malletrain.profiler.machine.job_views import ReportedJob
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.machine.points import CurvePoint, CurveSource
from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.machine.runs import ProfileRun
from malletrain.profiler.machine.stimuli import JobsReported, NodesReported, ScalingReported
from malletrain.runtime.job_value_messages import noise_from_proto
from malletrain.runtime.messages import job_state_of, message_of, terms_of, unix_seconds
from malletrain.runtime.node_needs_messages import needs_from_proto
from malletrain.v1 import job_manager_pb2, monitor_pb2, profiler_pb2, resources_pb2, scavenger_pb2

_MODES = {resources_pb2.ProfileMode.Value(f"PROFILE_MODE_{mode.name}"): mode for mode in ProfilingMode}
_SOURCES = {source: profiler_pb2.CurveSource.Value(f"CURVE_SOURCE_{source.name}") for source in CurveSource}


def jobs_from_proto(message: job_manager_pb2.WatchJobsResponse) -> JobsReported:
    """What JobManager tells of jobs."""
    return JobsReported(tuple(map(job_from_proto, message.jobs)), message.snapshot)


def scaling_from_proto(message: monitor_pb2.WatchScalingResponse, known: CurveEstimator) -> ScalingReported:
    """What Monitor tells of jobs.

    Args:
        known: What is known already.
    """
    records = (
        (record.job_id, measurements_of(record, known.measurements(record.job_id))) for record in message.records
    )
    return ScalingReported(tuple(records))


def nodes_from_proto(message: scavenger_pb2.WatchNodesResponse) -> NodesReported:
    """What the Scavenger tells of nodes."""
    joined = tuple((node.name, node.pool) for node in message.joined)
    return NodesReported(joined, tuple(message.left), message.snapshot)


def job_from_proto(job: resources_pb2.Job) -> ReportedJob:
    """A job as JobManager tells of it."""
    return ReportedJob(
        declaration=declaration_of(job),
        state=job_state_of(job.state),
        owner=job.owner,
        admitted=job.admitted,
        wanted_nodes=tuple(job.wanted_nodes),
        commanded_nodes=tuple(job.commanded_nodes),
        confirmed_nodes=tuple(job.confirmed_nodes),
        not_before=unix_seconds(job.not_before) if job.HasField("not_before") else None,
        saves_fail=job.saves_fail,
    )


def declaration_of(job: resources_pb2.Job) -> JobDeclaration:
    """What the user has declared of a job."""
    spec, terms = job.spec, terms_of(job.spec)
    # The plan measures members of a fleet, on nodes that the fleet has anyway.
    certain_nodes = not job.fleet_id and (terms.topology.requires or bool(needs_from_proto(spec.needs)))
    return JobDeclaration(
        **terms.terms(),
        job_id=job.id,
        curve=tuple(CurvePoint(point.nodes, point.rate, source=CurveSource.DECLARED) for point in spec.curve),
        scale_up_seconds=spec.scale_up_seconds if spec.HasField("scale_up_seconds") else None,
        scale_down_seconds=spec.scale_down_seconds if spec.HasField("scale_down_seconds") else None,
        mode=ProfilingMode.NEVER if certain_nodes else _MODES.get(spec.profile),
        family=spec.family,
        fleet_id=job.fleet_id,
        needs_certain_nodes=certain_nodes,
    )


def measurements_of(record: monitor_pb2.ScalingRecord, before: JobMeasurements) -> JobMeasurements:
    """What Monitor has measured of a job.

    Args:
        record: All that it has measured.
        before: The same a moment ago. Most of it stays, and is not kept twice by those who keep both.
    """
    rescales = tuple(RescaleStall(entry.from_nodes, entry.to_nodes, entry.stall_seconds) for entry in record.rescales)
    known = {point.nodes: point for point in before.points}
    points = []
    for entry in record.points:
        point = CurvePoint(entry.nodes, entry.rate, entry.steps, entry.relative_error, entry.unix_seconds)
        same = known.get(point.nodes)
        points.append(same if same == point else point)
    return JobMeasurements(
        points=tuple(points),
        scale_up_seconds=record.scale_up_seconds if record.HasField("scale_up_seconds") else None,
        scale_down_seconds=record.scale_down_seconds if record.HasField("scale_down_seconds") else None,
        checkpoint_seconds=record.checkpoint_seconds,
        rescales=before.rescales if before.rescales == rescales else rescales,
        noise=noise_from_proto(record.noise) if record.HasField("noise") else None,
    )


def profile_message(profile: JobProfile, state: ProfilingState) -> profiler_pb2.Profile:
    """All that is told of a job: its curve and costs, what the allocator is asked to do, and the newest run.

    Args:
        profile: Curve and costs.
        state: All runs and requests.
    """
    run = state.runs.get(profile.job_id)
    return message_of(
        profiler_pb2.Profile,
        profile,
        scale_up_seconds=profile.scale_up.seconds,
        scale_up_source=_SOURCES[profile.scale_up.source],
        scale_down_seconds=profile.scale_down.seconds,
        scale_down_source=_SOURCES[profile.scale_down.source],
        hold=_request_message(profile.job_id, state),
        run=None if run is None else _run_message(run),
        fit_line=[resources_pb2.ScalingPoint(nodes=nodes, rate=rate) for nodes, rate in profile.fit_line],
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
    return message_of(profiler_pb2.ProfileRun, run, visited_nodes=run.visited, donor_job_ids=run.donors)
