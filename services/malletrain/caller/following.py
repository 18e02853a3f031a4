"""Streams of JobManager that are followed until something has happened: changes of jobs, and logs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Set

from malletrain.caller.reconnecting import across_restarts
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
            found = [job for job in message.jobs if job.id in wanted]
            if message.snapshot:
                for job_id in sorted(wanted - {job.id for job in found}):
                    request = job_manager_pb2.GetJobRequest(job_id=job_id)
                    found.append(stubs.job_manager.GetJob(request, timeout=DEADLINE_SECONDS).job)
            yield found
    finally:
        stream.cancel()


def log_lines(stubs: ServiceStubs, job_id: str, tail: int) -> Iterator[str]:
    """The lines of a job's log so far.

    Args:
        stubs: The services.
        job_id: The job.
        tail: Only the last lines, this many; 0: all.

    Raises:
        grpc.RpcError: JobManager refuses, or does not answer.
    """
    request = job_manager_pb2.StreamLogsRequest(job_id=job_id, tail_lines=tail)
    for response in stubs.job_manager.StreamLogs(request, timeout=6 * DEADLINE_SECONDS):
        yield from response.lines


def followed_log(stubs: ServiceStubs, job_id: str, tail: int, told: Callable[[str], None]) -> Iterator[str]:
    """The lines of a job's log until it has ended, over restarts of JobManager: no line comes twice or is left out.

    Args:
        stubs: The services.
        job_id: The job.
        tail: Only the last lines of those that there are, this many; 0: all.
        told: Told that JobManager does not answer, and that it does again.

    Raises:
        grpc.RpcError: the call fails for a reason that does not pass.
    """
    stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS)
    positions: dict[str, int] = {}
    for part in across_restarts("JobManager", lambda: _log_parts(stubs, job_id, tail, positions), told):
        yield from part.lines
        positions.update(part.positions)
        if part.ended:
            return


def _log_parts(
    stubs: ServiceStubs, job_id: str, tail: int, positions: Mapping[str, int]
) -> Generator[job_manager_pb2.StreamLogsResponse, None, None]:
    """What comes after some positions; a new JobManager is asked for what begins where the printed lines end."""
    missing = 0 if positions else tail  # the first part says where the last lines begin
    request = job_manager_pb2.StreamLogsRequest(job_id=job_id, follow=True, tail_lines=missing, positions=positions)
    stream = stubs.job_manager.StreamLogs(request)
    earlier_version = True  # of JobManager: it sends neither positions nor parts without lines, nor says the end
    try:
        for part in stream:
            earlier_version = earlier_version and bool(part.lines) and not part.positions
            yield part
    finally:
        stream.cancel()
    if earlier_version:
        yield job_manager_pb2.StreamLogsResponse(ended=True)
