"""Monitor's gRPC service: receives reports, stores them, publishes progress and scaling records."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import structlog
from typing_extensions import override

from malletrain.monitor.messages import listed_scaling_message, parse_report, progress_message, scaling_message
from malletrain.monitor.metrics import MonitorMetrics, MonitorSnapshot
from malletrain.monitor.progress import ReportedBatch
from malletrain.monitor.report_streams import CommandRouter, ReportStream
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.store import MonitorStore
from malletrain.monitor.trackers import JobTracker, JobTrackers
from malletrain.runtime.access.certificate_keeper import CertificateKeeper
from malletrain.runtime.access.identity import Identity, current_caller, require_job
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.hub import Hub, newest_of_each
from malletrain.runtime.metrics.rows import JobRow
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

SERVICE_NAME = "malletrain.v1.MonitorService"
_ROLE = "monitor"

_INBOX_MESSAGES = 1024
"""Messages that may wait for the next write. If there are more, gRPC's flow control slows the reporters down."""


def create(settings: Settings, section: MonitorSettings, clock: Clock) -> MonitorService:
    """Monitor with its own database.

    Raises:
        DatabaseUnavailableError: the database can't be opened.
        InvalidInputError: Monitor's certificate can't be made or used.
    """
    for_nodes = None
    if settings.addresses.monitor_for_nodes:
        certificates = CertificateKeeper(settings.state_dir, (_ROLE,), clock, settings.tls.lifespan_seconds)
        certificates.renew()
        for_nodes = AddressForNodes(settings.addresses.monitor_for_nodes, certificates)
    store = MonitorStore(open_database(settings.database("monitor")))
    return MonitorService(store, section, clock, for_nodes=for_nodes)


class AddressForNodes(NamedTuple):
    """Where the agents of other nodes reach Monitor.

    Attributes:
        address: HOST:PORT.
        certificates: Keeps Monitor's certificate.
    """

    address: str
    certificates: CertificateKeeper


class MonitorService(monitor_pb2_grpc.MonitorServiceServicer):
    """Counts records, stores them, then acknowledges them. Publishes at most once per `publish_seconds` and job."""

    def __init__(
        self,
        store: MonitorStore,
        section: MonitorSettings,
        clock: Clock,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        for_nodes: AddressForNodes | None = None,
    ) -> None:
        """Continue from the store.

        Args:
            store: Where progress is stored.
            section: Settings.
            clock: Its monotonic time measures silence and how long commands wait.
            new_id: Makes identifiers of commands.
            for_nodes: Where it listens for agents; None: nowhere.
        """
        self._store = store
        self._section = section
        self._for_nodes = for_nodes
        self._clock = clock
        self._trackers = JobTrackers(section, store.load(), clock.monotonic())
        self._router = CommandRouter(section.command_seconds, new_id)
        self._inbox: asyncio.Queue[tuple[ReportStream, ReportedBatch | None]] = asyncio.Queue(_INBOX_MESSAGES)
        self._unacknowledged: dict[ReportStream, bool] = {}
        self._writing: asyncio.Task[None] | None = None
        self._storing = asyncio.Lock()
        self._progress: Hub[list[monitor_pb2.Progress]] = Hub(merge=newest_of_each(lambda entry: entry.job_id))
        self._scaling: Hub[list[monitor_pb2.ScalingRecord]] = Hub(merge=newest_of_each(lambda entry: entry.job_id))
        self._published: dict[str, monitor_pb2.ScalingRecord] = {}
        self._metrics = MonitorMetrics()
        self._log = structlog.get_logger(__name__)

    def register(self, host: ServiceHost) -> None:
        """Add the service to a server that has not started."""
        host.add(SERVICE_NAME, monitor_pb2_grpc.add_MonitorServiceServicer_to_server, self)
        self._metrics.register(host.metrics, self._snapshot)
        if self._for_nodes is not None:
            host.listen_for_nodes(self._for_nodes.address, self._for_nodes.certificates.path(_ROLE))
            self._log.info("serving nodes", address=self._for_nodes.address)

    async def run(self) -> None:
        """Store and publish, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._store_loop(), name="monitor store")
            group.create_task(self._publish_loop(), name="monitor publish")
            if self._for_nodes is not None:
                group.create_task(self._for_nodes.certificates.keep(), name="monitor certificate")

    async def close(self) -> None:
        """Store and acknowledge what has arrived, then end all streams."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._store_inbox()
        self._router.end_all()
        self._progress.close()
        self._scaling.close()
        self._store.close()

    @override
    async def Report(
        self, request_iterator: AsyncIterator[monitor_pb2.ReportRequest], context: Any
    ) -> AsyncIterator[monitor_pb2.ReportResponse]:
        """Receive a reporter's records. Ends when the reporter has ended its side and all records are acknowledged."""
        del context
        stream, caller = ReportStream(), current_caller()
        reading = asyncio.create_task(self._read(stream, request_iterator, caller), name="monitor report")
        reading.add_done_callback(lambda task: stream.end() if task.cancelled() or task.exception() else None)
        try:
            while (response := await stream.next()) is not None:
                yield response
            if reading.done():
                reading.result()
        finally:
            self._router.leave(stream)
            reading.cancel()

    @override
    async def GetProgress(
        self, request: monitor_pb2.GetProgressRequest, context: Any
    ) -> monitor_pb2.GetProgressResponse:
        """Progress of jobs. Unknown identifiers are left out."""
        del context
        return monitor_pb2.GetProgressResponse(progress=self._progress_of(*request.job_ids))

    @override
    async def ListScalingRecords(
        self, request: monitor_pb2.ListScalingRecordsRequest, context: Any
    ) -> monitor_pb2.ListScalingRecordsResponse:
        """Scaling records of jobs. Unknown identifiers are left out."""
        del context
        records = [listed_scaling_message(tracker) for tracker in self._trackers.select(request.job_ids)]
        return monitor_pb2.ListScalingRecordsResponse(records=records)

    @override
    async def WatchScaling(
        self, request: monitor_pb2.WatchScalingRequest, context: Any
    ) -> AsyncIterator[monitor_pb2.WatchScalingResponse]:
        """Stream scaling records: first those of all jobs (even if there are none), then those that change."""
        del request, context
        with self._scaling.subscribe() as changes:
            yield monitor_pb2.WatchScalingResponse(records=[scaling_message(job) for job in self._trackers.select()])
            async for records in changes:
                yield monitor_pb2.WatchScalingResponse(records=records)

    @override
    async def WatchProgress(
        self, request: monitor_pb2.WatchProgressRequest, context: Any
    ) -> AsyncIterator[monitor_pb2.WatchProgressResponse]:
        """Stream progress: first that of all jobs (even if there are none), then that of jobs that change or stall."""
        del request, context
        with self._progress.subscribe() as changes:
            yield monitor_pb2.WatchProgressResponse(progress=self._progress_of())
            async for progress in changes:
                yield monitor_pb2.WatchProgressResponse(progress=progress)

    @override
    async def SendCommand(
        self, request: monitor_pb2.SendCommandRequest, context: Any
    ) -> monitor_pb2.SendCommandResponse:
        """Send a command to a job's reporters. If none is connected, it waits for one for `command_seconds`."""
        del context
        if not request.job_id:
            raise InvalidInputError("job_id", "a job identifier", request.job_id)
        if request.type not in monitor_pb2.CommandType.values() or not request.type:
            raise InvalidInputError("type", "a command other than COMMAND_TYPE_UNSPECIFIED", request.type)
        reporters = self._router.send(request.job_id, request.type, self._clock.monotonic())
        return monitor_pb2.SendCommandResponse(reporters=reporters)

    @override
    async def ForgetJobs(self, request: monitor_pb2.ForgetJobsRequest, context: Any) -> monitor_pb2.ForgetJobsResponse:
        """Delete what is known of jobs."""
        del context
        async with self._storing:
            self._trackers.forget(request.job_ids)
            self._writing = asyncio.create_task(asyncio.to_thread(self._store.forget, list(request.job_ids)))
            await asyncio.shield(self._writing)
        for job_id in request.job_ids:
            self._published.pop(job_id, None)
        return monitor_pb2.ForgetJobsResponse()

    def _progress_of(self, *job_ids: str) -> list[monitor_pb2.Progress]:
        now = self._clock.monotonic()
        return [progress_message(tracker, now) for tracker in self._trackers.select(job_ids)]

    async def _read(
        self, stream: ReportStream, requests: AsyncIterator[monitor_pb2.ReportRequest], caller: Identity
    ) -> None:
        async for request in requests:
            batch = parse_report(request)
            require_job(caller, batch.job_id)
            if stream.identify(batch):
                self._router.join(stream, self._clock.monotonic())
            await self._inbox.put((stream, batch))
        await self._inbox.put((stream, None))

    async def _store_loop(self) -> None:
        pause = 0.0
        while True:
            await asyncio.sleep(max(self._section.store_seconds, pause))
            pause = await self._store_inbox() / self._section.acknowledgements_per_second

    async def _store_inbox(self) -> int:
        async with self._storing:
            return await self._count_and_store()

    async def _count_and_store(self) -> int:
        """Count what has arrived, write it in one transaction, and acknowledge it after that.

        Returns:
            Number of reporters that got an acknowledgement.
        """
        now = self._clock.monotonic()
        while not self._inbox.empty():
            stream, batch = self._inbox.get_nowait()
            self._unacknowledged[stream] = self._unacknowledged.get(stream, False) or batch is None
            if batch is not None:
                self._count(batch, now)
        jobs = self._trackers.take_unstored()
        acknowledgements = {
            stream: self._trackers.sequence(stream.job_id, stream.reporter_id) for stream in self._unacknowledged
        }
        try:
            if jobs:
                # In a thread: a slow disk must not block the loop. Shielded: a cancellation must not interrupt it.
                self._writing = asyncio.create_task(asyncio.to_thread(self._store.write, jobs), name="monitor write")
                begin = self._clock.monotonic()
                await asyncio.shield(self._writing)
                self._metrics.stored(self._clock.monotonic() - begin)
        except DatabaseUnavailableError as error:
            self._metrics.store_failed()
            self._trackers.put_back(job.job_id for job in jobs)
            self._log.error("records could not be stored, trying again", error=str(error), jobs=len(jobs))
            return 0
        except asyncio.CancelledError:
            # Written or not: the next call, from `close`, writes them again.
            self._trackers.put_back(job.job_id for job in jobs)
            raise
        for stream, sequence in acknowledgements.items():
            stream.acknowledge(sequence)
            if self._unacknowledged.pop(stream):
                stream.end()
        return len(acknowledgements)

    def _count(self, batch: ReportedBatch, now: float) -> None:
        before = self._trackers.find(batch.job_id)
        dropped = before.dropped_records if before else 0
        last = before.stalls.last_number if before else 0
        self._trackers.add(batch, now)
        after = self._trackers.find(batch.job_id)
        if after is not None:
            self._metrics.received(len(batch.records), after.dropped_records - dropped, after.stalls.after(last))

    def _snapshot(self) -> MonitorSnapshot:
        heard = self._trackers.heard_lately(self._clock.monotonic())
        return MonitorSnapshot(self._inbox.qsize(), tuple(map(_job_row, heard)))

    async def _publish_loop(self) -> None:
        while True:
            await asyncio.sleep(self._section.publish_seconds)
            self._publish(self._clock.monotonic())

    def _publish(self, now: float) -> None:
        changed = self._trackers.take_changed(now)
        if not changed:
            return
        self._progress.publish([progress_message(tracker, now) for tracker in changed])
        records = {tracker.job_id: scaling_message(tracker) for tracker in changed}
        fresh = [record for job_id, record in records.items() if self._published.get(job_id) != record]
        self._published.update(records)
        if fresh:
            self._scaling.publish(fresh)


def _job_row(tracker: JobTracker) -> JobRow:
    lost = tracker.progress.samples_lost
    return JobRow(tracker.job_id, (tracker.progress.samples + lost, lost, tracker.rate))
