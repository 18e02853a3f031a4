"""Changes of jobs, as JobManager streams them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Set

from malletrain.caller.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.v1 import job_manager_pb2, resources_pb2


def job_changes(stubs: ServiceStubs, awaited: Callable[[], Set[str]]) -> Generator[list[resources_pb2.Job], None, None]:
    """Those of the jobs that have changed; at first all, whether they have ended meanwhile or not.

    Args:
        stubs: The services.
        awaited: Tells the identifiers of the jobs; they may change while the stream is open.

    Raises:
        grpc.RpcError: the stream has ended, or one of the jobs is not known.
    """
    stream = stubs.job_manager.WatchJobs(job_manager_pb2.WatchJobsRequest(without_progress=True))
    try:
        for message in stream:
            wanted = awaited()
            changed = [job for job in message.jobs if job.id in wanted]
            if message.snapshot:
                for job_id in sorted(wanted - {job.id for job in changed}):
                    request = job_manager_pb2.GetJobRequest(job_id=job_id)
                    changed.append(stubs.job_manager.GetJob(request, timeout=DEADLINE_SECONDS).job)
            yield changed
    finally:
        stream.cancel()
