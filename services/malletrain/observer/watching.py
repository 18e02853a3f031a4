"""Follows the five services and keeps the one history that all viewers share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from malletrain.allocator.utilization.definition import HOUR_S, MAX_AGE_S, MinuteUse
from malletrain.common.backoff import Backoff
from malletrain.common.tasks import ending
from malletrain.observer import intake, job_intake
from malletrain.observer.accounting import at
from malletrain.observer.facts import HeldFact, IdleFact, ReleaseFact, StallFact
from malletrain.observer.history import KEPT_S, MAX_JOBS, MAX_RELEASES, History
from malletrain.observer.job_facts import JobFact
from malletrain.observer.past import past_of, with_past
from malletrain.observer.troubles import ServiceState
from malletrain.observer.updates import (
    curves_changed,
    jobs_changed,
    nodes_changed,
    nodes_released,
    plan_known,
    progress_changed,
    source_seen,
    stalls_measured,
    stays_known,
    utilization_recorded,
)
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.channel import DEADLINE_SECONDS, open_channel
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.following import follow
from malletrain.runtime.paging import all_pages_async
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import (
    allocator_pb2,
    allocator_pb2_grpc,
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2,
    monitor_pb2_grpc,
    profiler_pb2,
    profiler_pb2_grpc,
    resources_pb2,
    scavenger_pb2,
    scavenger_pb2_grpc,
)

MessageT = TypeVar("MessageT")

_HEALTH_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 5.0
_MAX_LATE = 5
"""Late answers in a row after which a service counts as gone."""
_SOURCE_SECONDS = 5.0
_UTILIZATION_SECONDS = 10.0
_MAX_ROWS = 200_000
"""Rows of the journal from which the time before the start is made."""
_LONG_AGO_S = 7 * 86400.0
"""How much earlier than what is shown a job may have got nodes that it still has then."""
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@dataclass
class Watched:
    """What is known, and its version.

    Attributes:
        services: Whether each service answers, by name.
        revision: Grows with every change of a node, a job, a plan or a service: what a viewer wants to see at once.
    """

    history: History = field(default_factory=History)
    services: dict[str, ServiceState] = field(default_factory=lambda: {name: ServiceState() for name in SERVICES})
    revision: int = 0


class Watcher:
    """Follows the services. All of it runs in one event loop."""

    def __init__(self, settings: Settings, credential: Credential, clock: Clock) -> None:
        """Nothing happens before `run`."""
        self.watched = Watched()
        self._settings = settings
        self._credential = credential
        # The wall clock may be set; a history goes forward only.
        self._offset = clock.time() - clock.monotonic()
        self._clock = clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._read_to = 0
        self._journal = asyncio.Event()
        self._past_rows: asyncio.Future[list[HeldFact]]
        self.changed = asyncio.Event()

    def now(self) -> float:
        """Seconds since the epoch, by a clock that is never set."""
        return self._offset + self._clock.monotonic()

    def channel(self, service: str) -> grpc.aio.Channel:
        """The channel to a service; it shows no token by itself."""
        if service not in self._channels:
            self._channels[service] = open_channel(self._settings.peer(service), None)
        return self._channels[service]

    def _own_channel(self, service: str) -> grpc.aio.Channel:
        """A channel that shows our own token."""
        name = f"own {service}"
        if name not in self._channels:
            self._channels[name] = open_channel(self._settings.peer(service), self._credential)
        return self._channels[name]

    async def run(self, *, past: bool = True) -> None:
        """Follow all services until cancelled.

        Args:
            past: Whether to show the time before, too: the journal, and U of a day in place of an hour.
        """
        tasks: list[Coroutine[Any, Any, None]] = [
            self._follow_nodes(),
            self._follow_jobs(),
            self._follow_progress(),
            self._follow_stalls(),
            self._follow_curves(),
            self._follow_plans(),
            self._ask_source(),
            self._ask_utilization(KEPT_S if past else HOUR_S + MAX_AGE_S),
            *(self._ask_health(name) for name in SERVICES),
        ]
        if past:
            self._past_rows = asyncio.get_running_loop().create_future()
            tasks += [self._follow_journal(), self._fill_past()]
        try:
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(ending(task, "watching"))
        finally:
            for channel in self._channels.values():
                await channel.close(None)

    def _apply(self, change: Callable[[History], History], *, notable: bool = True) -> None:
        """Apply an update; a notable one is shown at once."""
        self.watched.history = change(self.watched.history)
        if notable:
            self.watched.revision += 1
            self.changed.set()

    async def _follow(
        self,
        service: str,
        open_stream: Callable[[], AsyncIterable[MessageT]],
        handle: Callable[[MessageT], Awaitable[None]],
    ) -> None:
        await follow(service, lambda: self._noting_refusals(service, open_stream()), handle)

    async def _noting_refusals(self, service: str, stream: AsyncIterable[MessageT]) -> AsyncIterator[MessageT]:
        """The messages of a stream; notes whether the service refuses us."""
        try:
            async for message in stream:
                self._note_refusal(service, "")
                yield message
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSED:
                self._note_refusal(service, error.details() or error.code().name)
            raise

    def _note_refusal(self, service: str, why: str) -> None:
        state = self.watched.services[service]
        if state.refusal != why:
            state.refusal = why
            self.watched.revision += 1
            self.changed.set()

    async def _follow_nodes(self) -> None:
        stub = scavenger_pb2_grpc.ScavengerServiceStub(self._own_channel("scavenger"))

        async def handle(message: scavenger_pb2.WatchNodesResponse) -> None:
            joined = [intake.node_fact(node) for node in message.joined]
            left_nodes = list(message.left)
            now = self.now()
            self._apply(lambda history: nodes_changed(history, joined, left_nodes, now, snapshot=message.snapshot))

        await self._follow(
            "scavenger", lambda: stub.WatchNodes(scavenger_pb2.WatchNodesRequest(in_pieces=True)), handle
        )

    async def _follow_jobs(self) -> None:
        stub = job_manager_pb2_grpc.JobManagerServiceStub(self._own_channel("job_manager"))

        async def handle(message: job_manager_pb2.WatchJobsResponse) -> None:
            jobs, now = [job_intake.job_fact(job) for job in message.jobs], self.now()
            self._apply(lambda history: jobs_changed(history, jobs, now, snapshot=message.snapshot))
            self._journal.set()

        request = job_manager_pb2.WatchJobsRequest(without_progress=True, in_pieces=True)
        await self._follow("job_manager", lambda: stub.WatchJobs(request), handle)

    async def _follow_progress(self) -> None:
        stub = monitor_pb2_grpc.MonitorServiceStub(self._own_channel("monitor"))

        async def handle(message: monitor_pb2.WatchProgressResponse) -> None:
            facts, now = [job_intake.progress_fact(entry) for entry in message.progress], self.now()
            self._apply(lambda history: progress_changed(history, facts, now), notable=False)

        await self._follow("monitor", lambda: stub.WatchProgress(monitor_pb2.WatchProgressRequest()), handle)

    async def _follow_stalls(self) -> None:
        stub = monitor_pb2_grpc.MonitorServiceStub(self._own_channel("monitor"))

        async def handle(message: monitor_pb2.WatchScalingResponse) -> None:
            known = self.watched.history.jobs
            facts = [
                fact for record in message.records if record.job_id in known for fact in intake.stall_facts(record)
            ]
            self._apply(lambda history: stalls_measured(history, facts), notable=False)

        await self._heard_jobs()
        await self._follow("monitor", lambda: stub.WatchScaling(monitor_pb2.WatchScalingRequest()), handle)

    async def _follow_curves(self) -> None:
        stub = profiler_pb2_grpc.ProfilerServiceStub(self._own_channel("profiler"))

        async def handle(message: profiler_pb2.WatchProfilesResponse) -> None:
            facts = [job_intake.curve_fact(profile) for profile in message.profiles]
            self._apply(lambda history: curves_changed(history, facts), notable=False)

        await self._follow("profiler", lambda: stub.WatchProfiles(profiler_pb2.WatchProfilesRequest()), handle)

    async def _follow_plans(self) -> None:
        stub = allocator_pb2_grpc.AllocatorServiceStub(self._own_channel("allocator"))

        async def handle(message: allocator_pb2.WatchPlansResponse) -> None:
            fact = intake.plan_fact(message.plan)
            self._apply(lambda history: plan_known(history, fact))

        await self._follow("allocator", lambda: stub.WatchPlans(allocator_pb2.WatchPlansRequest()), handle)

    async def _follow_journal(self) -> None:
        """Read the journal: at first what there is, then what follows each change of a job."""
        await self._heard_jobs()
        await _until_answered(self._read_past)
        while True:
            await self._journal.wait()
            self._journal.clear()
            await _until_answered(self._read_journal)
            await asyncio.sleep(0.2)

    async def _fill_past(self) -> None:
        """Make the time before we heard the services, once all of them have answered."""
        held = await self._past_rows
        await _until_answered(lambda: self._fill(held))

    async def _heard_jobs(self) -> None:
        while not self.watched.history.heard_jobs or self.watched.history.nodes is None:
            await asyncio.sleep(0.1)

    async def _read_past(self) -> None:
        self._read_to = 0
        ended = await self._ended_jobs()
        held, releases = await self._rows()
        now = self.now()
        self._apply(lambda history: jobs_changed(history, ended, now))
        self._apply(lambda history: nodes_released(history, releases))
        self._past_rows.set_result(sorted(held, key=lambda row: row.time))

    async def _fill(self, held: list[HeldFact]) -> None:
        recorded = PastRecords(self._own_channel)
        history = self.watched.history
        ended = [job.id for job in history.jobs.values() if job.final]
        stalls = await recorded.stalls(ended)
        idle = await recorded.idle_changes(self.now() - KEPT_S)
        self._apply(lambda history: stalls_measured(history, stalls), notable=False)
        history = self.watched.history
        past = await asyncio.to_thread(past_of, history, held, idle)
        self._apply(lambda history: with_past(history, past))

    async def _read_journal(self) -> None:
        _, releases = await self._rows()
        if releases:
            self._apply(lambda history: nodes_released(history, releases))

    async def _rows(self) -> tuple[deque[HeldFact], deque[ReleaseFact]]:
        """What the rows of the journal say that were not read before."""
        stub = job_manager_pb2_grpc.JobManagerServiceStub(self._own_channel("job_manager"))
        held: deque[HeldFact] = deque(maxlen=_MAX_ROWS)
        releases: deque[ReleaseFact] = deque(maxlen=MAX_RELEASES)
        oldest = self.now() - KEPT_S
        request = job_manager_pb2.ListJobEventsRequest(page_token=str(self._read_to or ""))
        async for page in all_pages_async(stub.ListJobEvents, request, timeout=2 * DEADLINE_SECONDS):
            for row in page.events:
                self._read_to = row.sequence
                if row.unix_seconds > oldest - _LONG_AGO_S:
                    held.append(intake.held_fact(row))
                if (fact := intake.release_fact(row)) is not None and fact.time > oldest:
                    releases.append(fact)
        return held, releases

    async def _ended_jobs(self) -> list[JobFact]:
        """Jobs that have ended within the time that is kept."""
        stub = job_manager_pb2_grpc.JobManagerServiceStub(self._own_channel("job_manager"))
        oldest, ended = self.now() - KEPT_S, list[JobFact]()
        states = (resources_pb2.JOB_STATE_COMPLETED, resources_pb2.JOB_STATE_FAILED, resources_pb2.JOB_STATE_CANCELLED)
        request = job_manager_pb2.ListJobsRequest(states=states)
        async for page in all_pages_async(stub.ListJobs, request, timeout=2 * DEADLINE_SECONDS):
            facts = [job_intake.job_fact(job) for job in page.jobs]
            ended = [*ended, *(fact for fact in facts if (fact.ended or 0.0) > oldest)][-MAX_JOBS:]
        return ended

    async def _ask_source(self) -> None:
        stub = scavenger_pb2_grpc.ScavengerServiceStub(self._own_channel("scavenger"))

        async def ask() -> None:
            status = await stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=DEADLINE_SECONDS)
            fact = intake.source_fact(status)
            self._apply(lambda history: source_seen(history, fact), notable=fact != self.watched.history.source)
            listed = await stub.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS)
            nodes = [intake.node_fact(node) for node in listed.nodes]
            self._apply(lambda history: stays_known(history, nodes), notable=False)

        while True:
            await _until_answered(ask)
            await asyncio.sleep(_SOURCE_SECONDS)

    async def _ask_utilization(self, seconds: float) -> None:
        """U by minute, of so many seconds, and then of each minute that the Allocator has recorded."""
        stub = allocator_pb2_grpc.AllocatorServiceStub(self._own_channel("allocator"))

        async def ask() -> None:
            now = self.now()
            known = [minute.start for minute in self.watched.history.utilization if minute.start <= now]
            request = allocator_pb2.ListUtilizationRequest(
                since_unix_seconds=known[-1] + 1.0 if known else now - seconds
            )
            recorded: list[MinuteUse] = []
            try:
                async for page in all_pages_async(stub.ListUtilization, request, timeout=2 * DEADLINE_SECONDS):
                    recorded += map(intake.minute_use, page.minutes)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # an Allocator of the version before
                    raise
            if recorded:
                self._apply(lambda history: utilization_recorded(history, recorded))

        while True:
            await _until_answered(ask)
            await asyncio.sleep(_UTILIZATION_SECONDS)

    async def _ask_health(self, service: str) -> None:
        stub = health_pb2_grpc.HealthStub(self.channel(service))
        state = self.watched.services[service]
        late = 0
        while True:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_HEALTH_SECONDS)
                answers = answer.status == health_pb2.HealthCheckResponse.SERVING
                late = 0
            except grpc.aio.AioRpcError as error:
                # On a busy machine a service may answer late and be well.
                late = late + 1 if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else _MAX_LATE
                answers = bool(state.answers) and late < _MAX_LATE
            if answers != state.answers:
                state.answers, state.since = answers, self.now()
                self.watched.revision += 1
                self.changed.set()
            await asyncio.sleep(_HEALTH_SECONDS)

    def tick(self) -> None:
        """Account until now."""
        self.watched.history = at(self.watched.history, self.now())


async def _until_answered(ask: Callable[[], Awaitable[None]]) -> None:
    """Call until the service answers; one that is gone for a while is asked again, with back-off."""
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    while True:
        try:
            await ask()
            return
        except grpc.aio.AioRpcError as error:
            pause = backoff.fail()
            structlog.get_logger(__name__).info("asking again", code=error.code().name, pause_seconds=pause)
        await asyncio.sleep(pause)


_JOBS_ASKED = 100
_NOT_SERVED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


class PastRecords:
    """Asks for it. Raises grpc.aio.AioRpcError where a service does not answer."""

    def __init__(self, channel: Callable[[str], grpc.aio.Channel]) -> None:
        self._channel = channel

    async def idle_changes(self, since: float) -> list[IdleFact]:
        """Changes of the idle set since a time, and the last whole set before it; none where they are not served."""
        stub = allocator_pb2_grpc.AllocatorServiceStub(self._channel("allocator"))
        changes: list[IdleFact] = []
        request = allocator_pb2.ListIdleChangesRequest()
        try:
            async for page in all_pages_async(stub.ListIdleChanges, request, timeout=2 * DEADLINE_SECONDS):
                changes += map(intake.idle_fact, page.changes)
                wholes = [place for place, change in enumerate(changes) if change.whole and change.time <= since]
                if wholes:
                    del changes[: wholes[-1]]
        except grpc.aio.AioRpcError as error:
            if error.code() in _NOT_SERVED:
                return []
            raise
        return changes

    async def stalls(self, job_ids: Sequence[str]) -> list[StallFact]:
        """The measured rescales of jobs."""
        stub = monitor_pb2_grpc.MonitorServiceStub(self._channel("monitor"))
        stalls: list[StallFact] = []
        for first in range(0, len(job_ids), _JOBS_ASKED):
            request = monitor_pb2.ListScalingRecordsRequest(job_ids=job_ids[first : first + _JOBS_ASKED])
            answer = await stub.ListScalingRecords(request, timeout=2 * DEADLINE_SECONDS)
            stalls += [stall for record in answer.records for stall in intake.stall_facts(record)]
        return stalls
