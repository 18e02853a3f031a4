"""Monitor's gRPC service: receives reports, stores them, publishes progress and scaling records."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import structlog
from typing_extensions import override

from malletrain.common.tasks import lasting
from malletrain.monitor.job_recorder import JobRecorder
from malletrain.monitor.machine.machine import Effects, MonitorMachine
from malletrain.monitor.machine.noise import noise_among
from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.machine.stimuli import (
    BatchesReported,
    CountRecords,
    CountRescales,
    Effect,
    JobsForgotten,
    JobsKept,
    JobsPlaced,
    PublishDue,
    PublishProgress,
    PublishScaling,
    Stimulus,
    StoreJobs,
)
from malletrain.monitor.machine.trackers import JobTracker, JobTrackers, StoredJob
from malletrain.monitor.metrics import MonitorMetrics, MonitorSnapshot
from malletrain.monitor.placing import JobSpans, Spans
from malletrain.monitor.report_streams import CommandRouter, ReportBudget, ReportStream
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.store import METADATA, MonitorStore
from malletrain.monitor.stragglers.judging import WorkerTime
from malletrain.monitor.stragglers.slow_nodes import StragglerBook
from malletrain.monitor.training_metrics.history import LoggedValue, SamplesByTime, with_steps
from malletrain.monitor.training_metrics.store import LoggedBatch, newest_values
from malletrain.monitor.wire import (
    PAGE_SIZE,
    check_history_request,
    commands_of,
    history_response,
    listed_scaling_message,
    parse_metric_values,
    parse_report,
    parse_worker_times,
    places_of,
    progress_message,
    scaling_message,
    slow_node_message,
)
from malletrain.runtime.access.certificate_renewal import CertificateRenewal
from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.access.identity import Identity, current_caller, require_job, require_owner
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub, newest_of_each
from malletrain.runtime.kernel.machine_loop import MachineLoop, MachineStep
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.kernel.write_behind import WriteBehind
from malletrain.runtime.metrics.rows import JobRow
from malletrain.runtime.pieces import pieces
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import job_manager_pb2, monitor_pb2, monitor_pb2_grpc, scavenger_pb2

SERVICE_NAME = "malletrain.v1.MonitorService"
_ROLE = "monitor"

_INBOX_MESSAGES = 1024
"""Messages that may wait for the next write. If there are more, gRPC's flow control slows the reporters down."""


def create(
    settings: Settings, section: MonitorSettings, clock: Clock, credential: ServiceCredential | None = None
) -> MonitorService:
    """Monitor with its own database.

    Args:
        settings: Settings of the installation.
        section: Monitor's own.
        clock: Source of time.
        credential: What is shown to JobManager and the Scavenger; None: they are not followed.

    Raises:
        DatabaseUnavailableError: the database can't be opened.
        InvalidInputError: Monitor's certificate can't be made or used.
    """
    for_nodes = None
    if settings.addresses.monitor_for_nodes:
        certificates = CertificateRenewal(settings.state_dir, (_ROLE,), clock, settings.tls.lifespan_seconds)
        certificates.renew()
        for_nodes = AddressForNodes(settings.addresses.monitor_for_nodes, certificates)
    store = MonitorStore(open_database(settings.database("monitor"), METADATA))
    peers = None if credential is None else Peers(settings, credential)
    recorder = JobRecorder(settings.state_dir / "debug", settings.validate_state)
    return MonitorService(store, section, clock, recorder, for_nodes=for_nodes, peers=peers)


_MIN_STORE_SECONDS = 0.01
"""Time between two writes, however many reporters end."""
_BATCHES_AT_ONCE = 40
"""Counted in one step; of ten records each that takes some 5 ms."""


class AddressForNodes(NamedTuple):
    """The address at which agents of other nodes reach Monitor.

    Attributes:
        address: HOST:PORT.
        certificates: Keeps Monitor's certificate.
    """

    address: str
    certificates: CertificateRenewal


class _Acknowledgement(NamedTuple):
    """What a reporter is told once its records are stored.

    Attributes:
        sequence: Its records up to this sequence number are stored.
        ended: Whether it has ended its side, and is told nothing after that.
        metrics: Its logged values up to this number are stored.
    """

    sequence: int
    ended: bool
    metrics: int = 0

    def followed_by(self, later: _Acknowledgement) -> _Acknowledgement:
        """Merge this batch and a later one, so that few wait while the database is away."""
        return _Acknowledgement(later.sequence, later.ended or self.ended, max(self.metrics, later.metrics))


class _Received(NamedTuple):
    """What a reporter has sent.

    Attributes:
        stream: The reporter's stream.
        batch: Its batches; None: it has ended its side.
        size: Bytes that the message takes of the budget.
        values: What its script has logged.
    """

    stream: ReportStream
    batch: ReportedBatch | None
    size: int = 0
    values: tuple[LoggedValue, ...] = ()


@dataclass(frozen=True)
class _WriteBatch:
    """What is stored in one transaction, and which reporters are told after it.

    Attributes:
        jobs: Jobs as they are now, by identifier.
        forgotten: Jobs of which all rows go before that.
        acknowledgements: What reporters are told.
        metrics: What scripts have logged, oldest first.
    """

    jobs: Mapping[str, StoredJob] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()
    acknowledgements: Mapping[ReportStream, _Acknowledgement] = field(default_factory=dict)
    metrics: tuple[LoggedBatch, ...] = ()

    def followed_by(self, later: _WriteBatch) -> _WriteBatch:
        """Merge this batch and a later one, so that few wait while the database is away."""
        jobs = {job_id: job for job_id, job in self.jobs.items() if job_id not in later.forgotten}
        acknowledgements = dict(self.acknowledgements)
        for stream, fresh in later.acknowledgements.items():
            acknowledgements[stream] = (
                acknowledgements[stream].followed_by(fresh) if stream in acknowledgements else fresh
            )
        metrics = (*(batch for batch in self.metrics if batch.job_id not in later.forgotten), *later.metrics)
        forgotten = self.forgotten | later.forgotten
        return _WriteBatch(jobs | dict(later.jobs), forgotten, acknowledgements, newest_values(metrics))


class MonitorService(monitor_pb2_grpc.MonitorServiceServicer):
    """Counts records, stores them, then acknowledges them. Publishes at most once per `publish_seconds` and job."""

    def __init__(
        self,
        store: MonitorStore,
        section: MonitorSettings,
        clock: Clock,
        recorder: JobRecorder,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        for_nodes: AddressForNodes | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Continue from the store.

        Args:
            store: Where progress is stored.
            section: Settings.
            clock: Its monotonic time measures silence and how long commands wait.
            recorder: Runs the machine, and writes what led to its failures.
            new_id: Makes identifiers of commands.
            for_nodes: Where it listens for agents; None: nowhere.
            peers: Where the commanded scales are told, and where nodes are; None: what a rescale is, is guessed from
                records alone.
        """
        self._store = store
        self._section = section
        self._for_nodes = for_nodes
        self._peers = peers
        self._clock = clock
        self._machine = MonitorMachine(JobTrackers(section.options(), store.load(), clock.monotonic()))
        self._loop = MachineLoop[MonitorMachine, Stimulus, Effects, Mapping[ReportStream, bool]](
            self._machine, recorder, clock, self._perform_all
        )
        self._router = CommandRouter(section.command_seconds, new_id)
        self._inbox: asyncio.Queue[_Received] = asyncio.Queue(_INBOX_MESSAGES)
        self.budget = ReportBudget()
        self._stragglers = StragglerBook(section.straggler_options())
        self._spans = JobSpans()
        self._reporter_ended = asyncio.Event()
        self._acknowledged = 0
        self._progress: Hub[list[monitor_pb2.Progress]] = Hub(merge=newest_of_each(lambda entry: entry.job_id))
        self._scaling: Hub[list[monitor_pb2.ScalingRecord]] = Hub(merge=newest_of_each(lambda entry: entry.job_id))
        self._metrics = MonitorMetrics()
        self._changes = WriteBehind[_WriteBatch](
            self._write,
            _WriteBatch.followed_by,
            "monitor",
            on_stored=self._acknowledge,
            on_failed=self._metrics.store_failures.inc,
        )
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
            group.create_task(lasting(self._store_loop(), "monitor store"), name="monitor store")
            group.create_task(lasting(self._publish_loop(), "monitor publish"), name="monitor publish")
            if self._for_nodes is not None:
                group.create_task(
                    lasting(self._for_nodes.certificates.keep_renewed(), "monitor certificate"),
                    name="monitor certificate",
                )
            if self._peers is not None:
                group.create_task(lasting(self._follow_peers(self._peers), "monitor peers"), name="monitor peers")

    async def close(self) -> None:
        """Store and acknowledge what has arrived, then end all streams."""
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
            if stream.counted:
                self.budget.close(stream.job_id)
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
        records = [listed_scaling_message(tracker) for tracker in self._machine.trackers.select(request.job_ids)]
        return monitor_pb2.ListScalingRecordsResponse(records=records)

    @override
    async def WatchScaling(
        self, request: monitor_pb2.WatchScalingRequest, context: Any
    ) -> AsyncIterator[monitor_pb2.WatchScalingResponse]:
        """Stream scaling records: first those of all jobs (even if there are none), then those that change."""
        del request, context
        with self._scaling.subscribe() as changes:
            present = (scaling_message(tracker.scaling()) for tracker in self._machine.trackers.select())
            for records, _ in pieces(present):
                yield monitor_pb2.WatchScalingResponse(records=records)
            async for changed in changes:
                for records, _ in pieces(changed):
                    yield monitor_pb2.WatchScalingResponse(records=records)

    @override
    async def WatchProgress(
        self, request: monitor_pb2.WatchProgressRequest, context: Any
    ) -> AsyncIterator[monitor_pb2.WatchProgressResponse]:
        """Stream progress: first that of all jobs (even if there are none), then that of jobs that change or stall."""
        del request, context
        with self._progress.subscribe() as changes:
            for progress, _ in pieces(self._progress_of()):
                yield monitor_pb2.WatchProgressResponse(progress=progress)
            async for changed in changes:
                for progress, _ in pieces(changed):
                    yield monitor_pb2.WatchProgressResponse(progress=progress)

    @override
    async def ListSlowNodes(
        self, request: monitor_pb2.ListSlowNodesRequest, context: Any
    ) -> monitor_pb2.ListSlowNodesResponse:
        """Nodes that jobs call slow, with the number of owners of these."""
        del request, context
        nodes = map(slow_node_message, self._stragglers.slow_nodes(self._clock.monotonic()))
        return monitor_pb2.ListSlowNodesResponse(nodes=nodes)

    @override
    async def GetMetricHistory(
        self, request: monitor_pb2.GetMetricHistoryRequest, context: Any
    ) -> monitor_pb2.GetMetricHistoryResponse:
        """What a job's script has logged; nothing where it has logged nothing, and of jobs that are not known."""
        del context
        check_history_request(request)
        caller, job_id, store = current_caller(), request.job_id, self._store.metrics
        owner: str | None = self.budget.owner_of(job_id)
        if not owner and (owner := await asyncio.to_thread(store.owner, job_id)) is None:
            return monitor_pb2.GetMetricHistoryResponse()
        require_owner(caller, owner, job_id, "see its metrics")
        limit = request.page_size or PAGE_SIZE
        histories = await asyncio.to_thread(store.read, job_id, frozenset(request.names), request.page_token, limit)
        return history_response(histories, request.max_points)

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
        if request.nodes < 0:
            raise InvalidInputError("nodes", "a number of nodes, or 0", request.nodes)
        reporters = self._router.send(request.job_id, request.type, self._clock.monotonic(), request.nodes)
        return monitor_pb2.SendCommandResponse(reporters=reporters)

    @override
    async def ForgetJobs(self, request: monitor_pb2.ForgetJobsRequest, context: Any) -> monitor_pb2.ForgetJobsResponse:
        """Delete what is known of jobs."""
        del context
        self._loop.apply(JobsForgotten(tuple(request.job_ids)))
        await self._changes.flush()
        await self._changes.wait_until_stored()
        return monitor_pb2.ForgetJobsResponse()

    def _progress_of(self, *job_ids: str) -> list[monitor_pb2.Progress]:
        now = self._clock.monotonic()
        book = self._stragglers
        return [
            progress_message(tracker, now, book.slow_workers(tracker.job_id), book.count_measured(tracker.job_id, now))
            for tracker in self._machine.trackers.select(job_ids)
        ]

    async def _read(
        self, stream: ReportStream, requests: AsyncIterator[monitor_pb2.ReportRequest], caller: Identity
    ) -> None:
        async for request in requests:
            require_job(caller, request.job_id)
            size = request.ByteSize()
            await self.budget.wait_for_room(request.job_id, size)
            try:
                batch, worker_times = parse_report(request), parse_worker_times(request)
                values = parse_metric_values(request)
                if values:
                    batch = replace(batch, noise=noise_among({value.name: value.value for value in values}))
                if stream.identify(batch):
                    self.budget.open(batch.job_id)
                    stream.counted = True
                    self._router.join(stream, self._clock.monotonic())
                if worker_times:
                    self._compare_workers(batch.job_id, worker_times)
                await self._inbox.put(_Received(stream, batch, size, values))
            except BaseException:
                self.budget.give_back(request.job_id, size)
                raise
        await self._inbox.put(_Received(stream, None))
        self._reporter_ended.set()

    def _compare_workers(self, job_id: str, times: Sequence[WorkerTime]) -> None:
        for change in self._stragglers.take_times(job_id, times, self._clock.monotonic()):
            worker = change.worker
            self._log.warning(
                "a worker is slower than the others of its job" if change.slow else "a worker is no longer slow",
                job_id=job_id,
                rank=worker.rank,
                node=worker.node,
                share=round(worker.share, 3),
                own_seconds=round(worker.own_seconds, 4),
                others_seconds=round(worker.others_seconds, 4),
            )

    async def _follow_peers(self, peers: Peers) -> None:
        jobs = job_manager_pb2.WatchJobsRequest(without_progress=True, in_pieces=True)
        nodes = scavenger_pb2.WatchNodesRequest(in_pieces=True)
        try:
            async with asyncio.TaskGroup() as group:
                watched = follow("jobs", lambda: peers.job_manager.WatchJobs(jobs), self._take_jobs)
                group.create_task(lasting(watched, "monitor jobs"), name="monitor jobs")
                watched = follow("nodes", lambda: peers.scavenger.WatchNodes(nodes), self._take_nodes)
                group.create_task(lasting(watched, "monitor nodes"), name="monitor nodes")
        finally:
            await peers.close()

    async def _take_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        self.budget.note_owners(((job.id, job.owner) for job in message.jobs), snapshot=message.snapshot)
        places = places_of(message)
        self._stragglers.place(places, all_jobs=message.snapshot)
        if message.snapshot:
            self._loop.apply(JobsKept(tuple(job.id for job in message.jobs)))
        self._loop.apply(commands_of(message))
        self._place(self._spans.note_jobs(places, all_jobs=message.snapshot))

    async def _take_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        joined = ((node.name, tuple(node.topology)) for node in message.joined)
        self._place(self._spans.note_nodes(joined, message.left, all_nodes=message.snapshot))

    def _place(self, spans: Spans) -> None:
        if spans:
            self._loop.apply(JobsPlaced(spans))

    def _perform_all(self, step: MachineStep[MonitorMachine, Stimulus, Effects, Mapping[ReportStream, bool]]) -> None:
        for effect in step.result:
            self._perform(effect, step.detail or {})

    def _perform(self, effect: Effect, streams: Mapping[ReportStream, bool]) -> None:
        match effect:
            case StoreJobs():
                sequence_of = self._machine.trackers.sequence
                acknowledgements = {
                    stream: _Acknowledgement(sequence_of(stream.job_id, stream.reporter_id), ended)
                    for stream, ended in streams.items()
                }
                jobs = {job.job_id: job for job in effect.jobs}
                self._changes.add(_WriteBatch(jobs, frozenset(effect.forgotten), acknowledgements))
            case CountRecords():
                self._metrics.note_batch(effect.records, effect.dropped)
            case CountRescales():
                self._metrics.note_rescales(effect.rescales)
            case PublishProgress():
                self._progress.publish(self._progress_of(*effect.job_ids))
            case PublishScaling():
                self._scaling.publish(list(map(scaling_message, effect.records)))

    async def _store_loop(self) -> None:
        pause = 0.0
        while True:
            await asyncio.sleep(_MIN_STORE_SECONDS)
            # A node may be wanted back, and waits for a reporter that has ended its side: it is answered at once.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reporter_ended.wait(), max(self._section.store_seconds, pause))
            self._reporter_ended.clear()
            pause = await self._store_inbox() / self._section.acknowledgements_per_second

    async def _store_inbox(self) -> int:
        """Count what has arrived, write it in one transaction, and acknowledge it after that.

        Returns:
            Number of reporters that got an acknowledgement.
        """
        waiting = self._inbox.qsize()
        for first in range(0, waiting, _BATCHES_AT_ONCE):
            if first:
                await asyncio.sleep(0)  # what is asked, and reports that arrive, wait for one part only
            received = [self._inbox.get_nowait() for _ in range(min(_BATCHES_AT_ONCE, waiting - first))]
            self._count(received)
        await self._changes.flush()
        acknowledged, self._acknowledged = self._acknowledged, 0
        return acknowledged

    def _count(self, received: Sequence[_Received]) -> None:
        """Count some of what has arrived, and have it stored and acknowledged at the next flush."""
        streams: dict[ReportStream, bool] = {}
        for entry in received:
            streams[entry.stream] = streams.get(entry.stream, False) or entry.batch is None
            if entry.batch is not None:
                self.budget.give_back(entry.batch.job_id, entry.size)
        self._loop.apply(BatchesReported(tuple(entry.batch for entry in received if entry.batch is not None)), streams)
        self._add_metrics(received)

    def _add_metrics(self, received: Sequence[_Received]) -> None:
        """Have stored what scripts have logged: once the batches are counted, since these tell the steps."""
        logged: dict[ReportStream, tuple[list[ReportedBatch], list[LoggedValue]]] = {}
        log = {entry.stream for entry in received if entry.values or entry.stream.samples_by_time is not None}
        for entry in received:
            if entry.stream in log and entry.batch is not None:
                batches, values = logged.setdefault(entry.stream, ([], []))
                batches.append(entry.batch)
                values.extend(entry.values)
        metrics, acknowledgements = [], {}
        for stream, (batches, values) in logged.items():
            known = stream.samples_by_time = stream.samples_by_time or SamplesByTime()
            tracker = self._machine.trackers.find(stream.job_id)
            known.add(batches, tracker.progress.samples if tracker else 0)
            if not values:
                continue
            numbered = with_steps(values, known)
            owner = self.budget.owner_of(stream.job_id)
            metrics.append(LoggedBatch(stream.job_id, owner, stream.reporter_id, numbered))
            sequence = self._machine.trackers.sequence(stream.job_id, stream.reporter_id)
            acknowledgements[stream] = _Acknowledgement(sequence, False, values[-1].number)
        if metrics:
            self._changes.add(_WriteBatch(acknowledgements=acknowledgements, metrics=tuple(metrics)))

    def _write(self, batch: _WriteBatch) -> None:
        """Store a batch; in a thread."""
        if batch.forgotten:
            self._store.forget(sorted(batch.forgotten))
        if batch.jobs:
            begin = self._clock.monotonic()
            self._store.write(batch.jobs.values())
            self._metrics.store_seconds.observe(self._clock.monotonic() - begin)
        if batch.metrics:
            self._store.metrics.add(batch.metrics)

    def _acknowledge(self, batch: _WriteBatch) -> None:
        for stream, (sequence, ended, metrics) in batch.acknowledgements.items():
            stream.acknowledge(sequence, metrics)
            if ended:
                stream.end()
        self._acknowledged += len(batch.acknowledgements)

    def _snapshot(self) -> MonitorSnapshot:
        heard = self._machine.trackers.heard_lately(self._clock.monotonic())
        book, now = self._stragglers, self._clock.monotonic()
        return MonitorSnapshot(
            self._inbox.qsize(), tuple(map(_job_row, heard)), book.all_slow_workers(), len(book.slow_nodes(now))
        )

    async def _publish_loop(self) -> None:
        while True:
            await asyncio.sleep(self._section.publish_seconds)
            self._loop.apply(PublishDue())


def _job_row(tracker: JobTracker) -> JobRow:
    lost = tracker.progress.samples_lost
    return JobRow(tracker.job_id, (tracker.progress.samples + lost, lost, tracker.rate))
