"""Between the core's dataclasses and the messages of `malletrain.v1`."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.job_manager.jobs import Job, Spec
from malletrain.job_manager.states import JobState
from malletrain.job_manager.store import StoredEvent
from malletrain.v1 import job_manager_pb2, resources_pb2


def timestamp(unix_seconds: float) -> Timestamp:
    """A time, to the microsecond."""
    made = Timestamp()
    made.FromMicroseconds(round(unix_seconds * 1e6))
    return made


def state_value(state: JobState | None) -> resources_pb2.JobState.ValueType:
    """The enum value of a state; UNSPECIFIED for None."""
    return resources_pb2.JobState.Value("JOB_STATE_UNSPECIFIED" if state is None else f"JOB_STATE_{state.value}")


def state_of(value: resources_pb2.JobState.ValueType) -> JobState | None:
    """The state of an enum value; None for UNSPECIFIED.

    Raises:
        ValueError: the value is none of the enum's.
    """
    name = resources_pb2.JobState.Name(value).removeprefix("JOB_STATE_")
    return None if name == "UNSPECIFIED" else JobState(name)


def spec_message(spec: Spec) -> resources_pb2.JobSpec:
    """A spec as stored, defaults filled in."""
    return resources_pb2.JobSpec(
        name=spec.name,
        command=spec.command,
        working_directory=spec.working_directory,
        environment=spec.environment,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        permitted_nodes=spec.permitted_nodes,
        slots_per_node=spec.slots_per_node,
        scale_up_seconds=spec.scale_up_seconds,
        scale_down_seconds=spec.scale_down_seconds,
        curve=[resources_pb2.ScalingPoint(nodes=point.nodes, rate=point.rate) for point in spec.curve],
        weight=spec.weight,
        target_samples=spec.target_samples,
        max_restarts=spec.max_restarts,
        profile=resources_pb2.ProfileMode.Value(f"PROFILE_MODE_{spec.profile.value}"),
        family=spec.family,
        backend=resources_pb2.LauncherBackend.Value(f"LAUNCHER_BACKEND_{spec.backend.value}"),
    )


def job_message(job: Job) -> resources_pb2.Job:
    """A job as others see it."""
    return resources_pb2.Job(
        id=job.id,
        spec=spec_message(job.spec),
        state=state_value(job.state),
        reason=job.reason,
        create_time=timestamp(job.create_time),
        update_time=timestamp(job.update_time),
        admitted=job.admitted,
        wanted_nodes=job.wanted,
        commanded_nodes=job.commanded,
        confirmed_nodes=job.confirmed,
        plan_generation=job.plan_generation,
        restarts=job.restarts,
        samples=job.samples,
        rescales=job.rescales,
        preemptions=job.preemptions,
        metrics=job.metrics,
        start_time=None if job.start_time is None else timestamp(job.start_time),
        end_time=None if job.end_time is None else timestamp(job.end_time),
        not_before=None if job.not_before is None else timestamp(job.not_before),
    )


def event_message(stored: StoredEvent) -> job_manager_pb2.JobEvent:
    """A row of the journal."""
    event = stored.event
    return job_manager_pb2.JobEvent(
        sequence=stored.sequence,
        unix_seconds=event.unix_seconds,
        job_id=event.job_id,
        from_state=state_value(event.from_state),
        to_state=state_value(event.to_state),
        reason=event.reason,
        nodes=event.nodes,
        release_seconds=event.release_seconds,
    )
