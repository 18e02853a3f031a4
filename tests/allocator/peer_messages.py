"""Messages of the services that the Allocator follows."""

from __future__ import annotations

from malletrain.v1 import job_manager_pb2, profiler_pb2, resources_pb2, scavenger_pb2


def nodes(*names: str, snapshot: bool = True) -> scavenger_pb2.WatchNodesResponse:
    joined = [resources_pb2.Node(name=name, expected_stay_seconds=9.0) for name in names]
    return scavenger_pb2.WatchNodesResponse(snapshot=snapshot, joined=joined)


def job(name: str, state: resources_pb2.JobState.ValueType = resources_pb2.JOB_STATE_RUNNING, **more: object) -> object:
    spec = resources_pb2.JobSpec(name=name, min_nodes=1, max_nodes=4)
    return resources_pb2.Job(id=name, spec=spec, state=state, **{"admitted": True, **more})


def jobs(*entries: object, snapshot: bool = True) -> job_manager_pb2.WatchJobsResponse:
    return job_manager_pb2.WatchJobsResponse(snapshot=snapshot, jobs=entries)


def profiles(*names: str, scale_up_seconds: float = 2.0) -> profiler_pb2.WatchProfilesResponse:
    points = [profiler_pb2.ProfilePoint(nodes=1, rate=10), profiler_pb2.ProfilePoint(nodes=4, rate=30)]
    return profiler_pb2.WatchProfilesResponse(
        profiles=[profiler_pb2.Profile(job_id=name, points=points, scale_up_seconds=scale_up_seconds) for name in names]
    )
