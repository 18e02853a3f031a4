"""Follows a stream of a service across its restarts, for callers that go on until something has happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Set
from contextlib import closing
from typing import TypeVar

import grpc

from malletrain.caller.stubs import DEADLINE_SECONDS, ServiceStubs, is_unverified
from malletrain.common.backoff import Backoff
from malletrain.v1 import job_manager_pb2, resources_pb2

ItemT = TypeVar("ItemT")

_FIRST_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 2.0
_PASSING = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,  # by a server that ends
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # a reader that was too slow has to begin again
    )
)


def across_restarts(
    name: str,
    open_stream: Callable[[], Generator[ItemT, None, None]],
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[ItemT]:
    """The items of a stream, which is opened again, with back-off, whenever it ends or the service is gone.

    To be used once the service has answered: it is taken for granted that it comes back.

    Args:
        name: The service, for people.
        open_stream: Makes the calls; closed when the caller has seen enough.
        say: Told that the service does not answer, and that it does again.
        pause: Waits for so many seconds.

    Raises:
        grpc.RpcError: the call fails for a reason that does not pass, e.g. the token is no longer valid.
    """
    backoff, gone = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS), False
    while True:
        try:
            with closing(open_stream()) as stream:
                for item in stream:
                    if gone:
                        say(f"{name} answers again")
                    gone = False
                    backoff.succeed()
                    yield item
        except grpc.RpcError as error:
            if error.code() not in _PASSING or is_unverified(error):
                raise
            if not gone and error.code() is grpc.StatusCode.UNAVAILABLE:
                say(f"{name} does not answer; waiting for it (Ctrl-C ends this)")
                gone = True
        pause(backoff.fail())


def job_changes(stubs: ServiceStubs, awaited: Callable[[], Set[str]]) -> Generator[list[resources_pb2.Job], None, None]:
    """Awaited jobs that have changed, as they change; at first all of them, also those that have ended meanwhile.

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
