"""Stands for Monitor during a check: it keeps what is reported, and passes commands on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from malletrain.cli.check.observations import Report
from malletrain.v1 import monitor_pb2

_MAX_REPORTS = 100_000


class ReportRecorder:
    """Keeps the reports of each job. All calls come from the event loop.

    Attributes:
        commits: When a request to commit was handed out, by job, in seconds since the epoch.
    """

    def __init__(self) -> None:
        self.commits: dict[str, list[float]] = {}
        self._reports: dict[str, list[Report]] = {}
        self._pending: dict[str, list[monitor_pb2.Command]] = {}

    def reports(self, job_id: str) -> list[Report]:
        """What a job has reported so far, in the order of its arrival."""
        return self._reports.get(job_id, [])

    def ask_to_commit(self, job_id: str) -> None:
        """Have a job commit; its next message is answered with that."""
        command = monitor_pb2.Command(id=f"commit-{time.time_ns()}", type=monitor_pb2.COMMAND_TYPE_COMMIT)
        self._pending.setdefault(job_id, []).append(command)

    async def report(
        self, request_iterator: AsyncIterator[monitor_pb2.ReportRequest], context: object
    ) -> AsyncIterator[monitor_pb2.ReportResponse]:
        """A reporter's stream."""
        del context
        async for request in request_iterator:
            newest = self._keep(request)
            commands = self._pending.pop(request.job_id, [])
            if commands:
                self.commits.setdefault(request.job_id, []).append(time.time())
            yield monitor_pb2.ReportResponse(acknowledged_sequence=newest, commands=commands)

    def _keep(self, request: monitor_pb2.ReportRequest) -> int:
        batch = request.batch
        known = self._reports.setdefault(request.job_id, [])
        for seconds, samples, position, workers in zip(
            batch.unix_seconds, batch.samples, batch.positions, batch.workers, strict=True
        ):
            if len(known) < _MAX_REPORTS:
                known.append(Report(seconds, samples, None if position < 0 else position, workers))
        return batch.first_sequence + len(batch.samples) - 1 if batch.samples else 0


async def serve(recorder: ReportRecorder) -> tuple[grpc.aio.Server, str]:
    """Serve on a free port of loopback; returns the server and its address."""
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(
        recorder.report, monitor_pb2.ReportRequest.FromString, monitor_pb2.ReportResponse.SerializeToString
    )
    handler = grpc.method_handlers_generic_handler("malletrain.v1.MonitorService", {"Report": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"
