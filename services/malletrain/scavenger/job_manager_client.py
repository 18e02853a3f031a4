"""Has JobManager free nodes that are wanted back."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.errors import UnavailableError
from malletrain.runtime.tracing.propagation import metadata_of
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc

# How much of a caller's deadline is kept for our own answer: this share, and at least so many seconds.
_ANSWER_SHARE = 0.1
_ANSWER_SECONDS = 0.1


class Releaser:
    """Asks JobManager to free nodes and to confirm that they are free."""

    def __init__(self, channel: grpc.aio.Channel, deadline_seconds: float) -> None:
        """Use a channel to JobManager, which `close` closes.

        Args:
            channel: Channel to JobManager.
            deadline_seconds: Deadline for JobManager where the caller has none.
        """
        self._channel = channel
        self._stub: job_manager_pb2_grpc.JobManagerServiceAsyncStub = job_manager_pb2_grpc.JobManagerServiceStub(
            channel
        )
        self._deadline = deadline_seconds

    async def release(
        self, names: Sequence[str], remaining: float | None, context: TraceContext | None = None
    ) -> list[str]:
        """The nodes that JobManager confirms to be free by the deadline.

        Args:
            names: Names of the nodes.
            remaining: Seconds until the caller's deadline; None where it has none.
            context: What the call belongs to; None: it is not traced.

        Raises:
            UnavailableError: JobManager can't be reached, or fails.
        """
        deadline = self._deadline
        if remaining is not None:
            answering = max(_ANSWER_SECONDS, _ANSWER_SHARE * remaining)
            deadline = max(_ANSWER_SECONDS, min(deadline, remaining - answering))
        try:
            response = await self._stub.ReleaseNodes(
                job_manager_pb2.ReleaseNodesRequest(nodes=names), timeout=deadline, metadata=metadata_of(context)
            )
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return []
            raise UnavailableError(
                f"the nodes have left, but JobManager can't confirm that they are free: {error.code().name} "
                f"({error.details()})"
            ) from error
        confirmed = frozenset(response.released)
        return [name for name in names if name in confirmed]

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()
