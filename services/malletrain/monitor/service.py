"""Monitor over gRPC: reports in, progress and scaling records out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog
from sqlalchemy.exc import OperationalError
from typing_extensions import override

from malletrain.monitor.book import JobBook
from malletrain.monitor.gate import Gate
from malletrain.monitor.messages import batch_of, progress_message, scaling_message
from malletrain.monitor.records import Batch
from malletrain.monitor.reporters import ReportStream, Switchboard
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.store import MonitorStore
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.hub import Hub
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.store import open_engine
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

SERVICE_NAME = "malletrain.v1.MonitorService"

# Messages that may wait for the next write; beyond them gRPC's flow control holds the reporters back.
_INBOX_MESSAGES = 1024


def create(settings: Settings, section: MonitorSettings, clock: Clock) -> MonitorService:
    """Monitor on its own database.

    Raises:
        sqlalchemy.exc.OperationalError: the database can't be opened.
    """
    return MonitorService(MonitorStore(open_engine(settings.database("monitor"))), section, clock, gate=Gate(settings))


class MonitorService(monitor_pb2_grpc.MonitorServiceServicer):
    """Counts, stores, then acknowledges; publishes at most once per `publish_seconds` and job."""

    def __init__(
        self,
        store: MonitorStore,
        section: MonitorSettings,
        clock: Clock,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        gate: Gate | None = None,
    ) -> None:
        """Go on from what the store holds.

        Args:
            store: Where records outlive the process.
            section: Settings.
            clock: Its monotonic time measures silences and how long commands wait.
            new_id: Makes identifiers of commands.
            gate: Lets trainers on other nodes through.
        """
        self._store = store
        self._section = section
        self._gate = gate
        self._clock = clock
        self._book = JobBook(section, store.load(), clock.monotonic())
        self._switchboard = Switchboard(section.command_seconds, new_id)
        self._inbox: asyncio.Queue[tuple[ReportStream, Batch | None]] = asyncio.Queue(_INBOX_MESSAGES)
        self._unacknowledged: dict[ReportStream, bool] = {}
        self._writing: asyncio.Task[None] | None = None
        self._progress: Hub[list[monitor_pb2.Progress]] = Hub()
        self._scaling: Hub[list[monitor_pb2.ScalingRecord]] = Hub()
        self._published: dict[str, monitor_pb2.ScalingRecord] = {}
        self._log = structlog.get_logger(__name__)

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        host.add(SERVICE_NAME, monitor_pb2_grpc.add_MonitorServiceServicer_to_server, self)

    async def run(self) -> None:
        """Store and publish, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._store_loop(), name="monitor store")
            group.create_task(self._publish_loop(), name="monitor publish")
            if self._gate is not None:
                group.create_task(self._gate.run(), name="monitor gate")

    async def close(self) -> None:
        """Store and acknowledge what has come in, then end all streams."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._store_inbox()
        self._switchboard.end_all()
        self._progress.close()
        self._scaling.close()
        self._store.close()

    @override
    async def Report(
        self, request_iterator: AsyncIterator[monitor_pb2.ReportRequest], context: Any
    ) -> AsyncIterator[monitor_pb2.ReportResponse]:
        """A reporter's stream: ends when the reporter has ended its side and all its records are acknowledged."""
        del context
        stream = ReportStream()
        reading = asyncio.create_task(self._read(stream, request_iterator), name="monitor report")
        reading.add_done_callback(lambda task: stream.end() if task.cancelled() or task.exception() else None)
        try:
            while (response := await stream.next()) is not None:
                yield response
            if reading.done():
                reading.result()
        finally:
            self._switchboard.leave(stream)
            reading.cancel()

    @override
    async def GetProgress(
        self, request: monitor_pb2.GetProgressRequest, context: Any
    ) -> monitor_pb2.GetProgressResponse:
        """How far jobs are; unknown identifiers are left out."""
        del context
        return monitor_pb2.GetProgressResponse(progress=self._progress_of(*request.job_ids))

    @override
    async def ListScalingRecords(
        self, request: monitor_pb2.ListScalingRecordsRequest, context: Any
    ) -> monitor_pb2.ListScalingRecordsResponse:
        """The scaling records of jobs; unknown identifiers are left out."""
        del context
        records = [scaling_message(tracker) for tracker in self._book.select(request.job_ids)]
        return monitor_pb2.ListScalingRecordsResponse(records=records)

    @override
    async def WatchScaling(
        self, request: monitor_pb2.WatchScalingRequest, context: Any
    ) -> AsyncIterator[monitor_pb2.WatchScalingResponse]:
        """All records first (none is a message, too), then those that change."""
        del request, context
        with self._scaling.subscribe() as changes:
            yield monitor_pb2.WatchScalingResponse(records=[scaling_message(job) for job in self._book.select()])
            async for records in changes:
                yield monitor_pb2.WatchScalingResponse(records=records)

    @override
    async def WatchProgress(
        self, request: monitor_pb2.WatchProgressRequest, context: Any
    ) -> AsyncIterator[monitor_pb2.WatchProgressResponse]:
        """The progress of all jobs first (none is a message, too), then of those that change or stall."""
        del request, context
        with self._progress.subscribe() as changes:
            yield monitor_pb2.WatchProgressResponse(progress=self._progress_of())
            async for progress in changes:
                yield monitor_pb2.WatchProgressResponse(progress=progress)

    @override
    async def SendCommand(
        self, request: monitor_pb2.SendCommandRequest, context: Any
    ) -> monitor_pb2.SendCommandResponse:
        """Passes a command on; without a reporter it waits for one for `command_seconds`."""
        del context
        if not request.job_id:
            raise InvalidInputError("job_id", "a job identifier", request.job_id)
        if request.type not in monitor_pb2.CommandType.values() or not request.type:
            raise InvalidInputError("type", "a command other than COMMAND_TYPE_UNSPECIFIED", request.type)
        reporters = self._switchboard.send(request.job_id, request.type, self._clock.monotonic())
        return monitor_pb2.SendCommandResponse(reporters=reporters)

    def _progress_of(self, *job_ids: str) -> list[monitor_pb2.Progress]:
        now = self._clock.monotonic()
        return [progress_message(tracker, now) for tracker in self._book.select(job_ids)]

    async def _read(self, stream: ReportStream, requests: AsyncIterator[monitor_pb2.ReportRequest]) -> None:
        async for request in requests:
            batch = batch_of(request)
            if stream.identify(batch):
                self._switchboard.join(stream, self._clock.monotonic())
            await self._inbox.put((stream, batch))
        await self._inbox.put((stream, None))

    async def _store_loop(self) -> None:
        while True:
            await asyncio.sleep(self._section.store_seconds)
            await self._store_inbox()

    async def _store_inbox(self) -> None:
        """Count what has come in, write it in one transaction, and only then acknowledge it."""
        now = self._clock.monotonic()
        while not self._inbox.empty():
            stream, batch = self._inbox.get_nowait()
            self._unacknowledged[stream] = self._unacknowledged.get(stream, False) or batch is None
            if batch is not None:
                self._book.add(batch, now)
        jobs = self._book.take_unstored()
        acknowledgements = {
            stream: self._book.sequence(stream.job_id, stream.reporter_id) for stream in self._unacknowledged
        }
        try:
            if jobs:
                # In a thread, so that a slow disk holds up nobody; shielded, so that it is never half awaited.
                self._writing = asyncio.create_task(asyncio.to_thread(self._store.write, jobs), name="monitor write")
                await asyncio.shield(self._writing)
        except OperationalError as error:
            self._book.put_back(job.job_id for job in jobs)
            self._log.error("records could not be stored, trying again", error=str(error), jobs=len(jobs))
            return
        except asyncio.CancelledError:
            # Written or not: the next call, at the drain, writes them again.
            self._book.put_back(job.job_id for job in jobs)
            raise
        for stream, sequence in acknowledgements.items():
            stream.acknowledge(sequence)
            if self._unacknowledged.pop(stream):
                stream.end()

    async def _publish_loop(self) -> None:
        while True:
            await asyncio.sleep(self._section.publish_seconds)
            self._publish(self._clock.monotonic())

    def _publish(self, now: float) -> None:
        changed = self._book.take_changed(now)
        if not changed:
            return
        self._progress.publish([progress_message(tracker, now) for tracker in changed])
        records = {tracker.job_id: scaling_message(tracker) for tracker in changed}
        fresh = [record for job_id, record in records.items() if self._published.get(job_id) != record]
        self._published.update(records)
        if fresh:
            self._scaling.publish(fresh)
