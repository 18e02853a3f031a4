"""The Scavenger over gRPC: which nodes are idle, which join, which leave."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import structlog

from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.access.identity import current_caller
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError, LimitExceededError, UnavailableError
from malletrain.runtime.hub import Hub
from malletrain.runtime.messages import timestamp
from malletrain.runtime.node_names import check_node_names
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.tracing.propagation import to_message
from malletrain.runtime.tracing.spans import Span
from malletrain.scavenger.drains import Drain, DrainSet, read_drains
from malletrain.scavenger.event_spans import EventSpans
from malletrain.scavenger.idle_set import IdleEvent, IdleSet
from malletrain.scavenger.job_manager_client import Releaser
from malletrain.scavenger.messages import (
    NodeDescriber,
    drain_messages,
    placeholder_message,
    quarantine_message,
    query_message,
)
from malletrain.scavenger.metrics import CONFIRMED, Gauges, ScavengerMetrics
from malletrain.scavenger.quarantine import Quarantine, QuarantinePolicy
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import NodeSource, Observation, SourceError
from malletrain.scavenger.sources.build import build_source, past_lengths
from malletrain.scavenger.state_file import DRAINS, RECLAIM_COOLDOWNS, ScavengerStateFile
from malletrain.scavenger.stays import StayEstimator
from malletrain.v1 import scavenger_pb2, scavenger_pb2_grpc

SERVICE_NAME = scavenger_pb2.DESCRIPTOR.services_by_name["ScavengerService"].full_name

# The wall clock may be set: the debounce timer looks at it at least so often.
_LONGEST_SLEEP_SECONDS = 1.0
# How long ListNodes waits for the first observation.
_FIRST_OBSERVATION_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0
_LONGEST_REASON = 500
_MOST_DRAINS = 100_000

_Context = grpc.aio.ServicerContext[Any, Any]


def create(settings: Settings, section: ScavengerSettings, clock: Clock, credential: Credential) -> ScavengerService:
    """Create the service; an event loop must be running.

    Raises:
        InvalidInputError: a setting or a trace can't be used; names the setting, or the file and line.
    """
    metrics = ScavengerMetrics()
    state_file = ScavengerStateFile(settings.state_dir)
    source = build_source(section, settings, state_file, clock, credential, metrics.reclaim_step)
    stays = StayEstimator(
        [*past_lengths(section), *source.past_lengths()], horizon_seconds=section.stay_horizon_seconds
    )
    # Nodes that are held were idle for so long before they were taken. Static nodes have no debounce: they are never
    # idle between two jobs, and count at once after a restart.
    held = any(scheduler.hold.held for scheduler in (section.slurm, section.pbs))
    debounce = section.debounce_seconds if section.source != "static" and not held else 0.0
    idle_set = IdleSet(debounce, source.order(), _stored_cooldowns(state_file))
    releaser = Releaser(open_channel(settings.peer("job_manager"), credential), section.release_deadline_seconds)
    return ScavengerService(source, idle_set, stays, releaser, state_file, section, clock, metrics)


def _stored_cooldowns(state_file: ScavengerStateFile) -> dict[str, float]:
    found = state_file.section(RECLAIM_COOLDOWNS)
    return {name: float(until) for name, until in found.items() if isinstance(until, int | float)}


class ScavengerService(scavenger_pb2_grpc.ScavengerServiceServicer):
    """Follows a source; tells watchers of every event of the idle set."""

    def __init__(
        self,
        source: NodeSource,
        idle_set: IdleSet,
        stays: StayEstimator,
        releaser: Releaser,
        state_file: ScavengerStateFile,
        section: ScavengerSettings,
        clock: Clock,
        metrics: ScavengerMetrics | None = None,
    ) -> None:
        """Take over the parts; `run` starts them.

        Args:
            source: Tells which nodes are idle.
            idle_set: Decides which of them count.
            stays: Learns how long they stay.
            releaser: Has JobManager free reclaimed nodes; closed by `close`.
            state_file: Keeps reclaims over a restart.
            section: Settings.
            clock: Wall clock.
            metrics: Metrics for Prometheus.
        """
        self._source = source
        self._idle_set = idle_set
        self._nodes = NodeDescriber(stays)
        self._releaser = releaser
        self._state_file = state_file
        self._section = section
        self._clock = clock
        self._events: Hub[scavenger_pb2.WatchNodesResponse] = Hub()
        self._revision = 0
        self._event_time = clock.time()
        self._source_ended = False
        self._seen = False
        self._closing = False
        self._failed = False
        # Set once there is an observation, or once none will come.
        self._ready = asyncio.Event()
        self._reschedule = asyncio.Event()
        policy = QuarantinePolicy(
            section.quarantine_failures, section.quarantine_half_life_seconds, section.quarantine_longest_seconds
        )
        self._quarantine = Quarantine(policy)
        self._drains = read_drains(state_file.section(DRAINS))
        self._idle_set.drain(clock.time(), self._drains)
        self._metrics = metrics or ScavengerMetrics()
        self._spans = EventSpans()
        self._log = structlog.get_logger(__name__)

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        host.add(SERVICE_NAME, scavenger_pb2_grpc.add_ScavengerServiceServicer_to_server, self)
        self._metrics.register(host.metrics, self._gauges)
        self._spans.register(host.tracer)

    async def run(self) -> None:
        """Follow the source and the debounce deadlines, until cancelled."""
        self._exclude()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_source(), name="source")
                group.create_task(self._follow_deadlines(), name="deadlines")
        except Exception:
            self._failed = True
            raise

    async def close(self) -> None:
        """End the streams; give nodes back that are held, and end the replay of a trace.

        After a defect nodes stay held, as after a kill: the next Scavenger finds their placeholders again.
        """
        self._closing = True
        self._ready.set()
        self._events.close()
        if not self._failed:
            await self._source.close()
        await self._releaser.close()

    async def ListNodes(
        self, request: scavenger_pb2.ListNodesRequest, context: _Context
    ) -> scavenger_pb2.ListNodesResponse:
        """The nodes that count as idle; a page token is the name of the last node of the page before."""
        del context
        if request.page_size < 0:
            raise InvalidInputError("page_size", "at least 0", request.page_size)
        await self._first_observation()
        nodes = self._idle_set.members()
        if request.page_token:
            last = self._idle_set.rank(request.page_token)
            if last is None:
                raise InvalidInputError("page_token", "a token of an earlier page", request.page_token)
            nodes = tuple(node for node in nodes if (self._idle_set.rank(node.name) or 0) > last)
        page = nodes[: request.page_size or None]
        return scavenger_pb2.ListNodesResponse(
            nodes=self._nodes.messages(page, self._clock.time()),
            next_page_token=page[-1].name if len(page) < len(nodes) else "",
            revision=self._revision,
        )

    async def WatchNodes(
        self, request: scavenger_pb2.WatchNodesRequest, context: _Context
    ) -> AsyncIterator[scavenger_pb2.WatchNodesResponse]:
        """The present nodes, then every event. Waits for the first observation: before it, no set would be true."""
        del request, context
        await self._ready.wait()
        if self._closing:
            raise UnavailableError("the Scavenger is ending")
        with self._events.subscribe() as events:
            yield scavenger_pb2.WatchNodesResponse(
                snapshot=True,
                joined=self._nodes.messages(self._idle_set.members(), self._clock.time()),
                event_time=timestamp(self._event_time),
                revision=self._revision,
                source_ended=self._source_ended,
            )
            async for event in events:
                yield event

    async def ReclaimNodes(
        self, request: scavenger_pb2.ReclaimNodesRequest, context: _Context
    ) -> scavenger_pb2.ReclaimNodesResponse:
        """Takes nodes out at once, tells watchers, then has JobManager confirm that the nodes are free.

        JobManager is asked for every node that has ever counted as idle, so that a repeated call is confirmed, too.
        """
        names = _names(request.nodes)
        cooldown = request.hold_seconds or self._section.reclaim_hold_seconds
        if not 0 < cooldown < math.inf:
            raise InvalidInputError("hold_seconds", "a finite number, at least 0", request.hold_seconds)
        known = [name for name in names if self._was_used(name)]
        begin, now = self._clock.monotonic(), self._clock.time()
        span = self._spans.wanted_back("reclaim", names)
        self._change(self._idle_set.reclaim(now, names, cooldown), now, "reclaim", span)
        self._reschedule.set()
        self._state_file.try_write(RECLAIM_COOLDOWNS, self._idle_set.cooldowns())
        released: list[str] = []
        try:
            if known:
                released = await self._releaser.release(known, context.time_remaining(), span.context)
        finally:
            span.note(released=len(released))
            span.end()
            self._exclude()
            if len(released) < len(known):
                self._metrics.reclaim_unconfirmed()
        if known and len(released) == len(known):
            self._metrics.reclaim_step(CONFIRMED, self._clock.monotonic() - begin)
        unknown = [name for name in names if name not in known]
        self._log.info("reclaimed", nodes=names, released=released, unknown=unknown, cooldown_seconds=cooldown)
        return scavenger_pb2.ReclaimNodesResponse(released=released, unknown=unknown)

    async def DrainNodes(
        self, request: scavenger_pb2.DrainNodesRequest, context: _Context
    ) -> scavenger_pb2.DrainNodesResponse:
        """Takes nodes out until they are resumed, and has JobManager confirm that they are free."""
        names = _names_or_all(request.nodes, request.all)
        if len(request.reason) > _LONGEST_REASON:
            raise InvalidInputError("reason", f"at most {_LONGEST_REASON} characters", request.reason)
        if len(self._drains.nodes) + len(names) > _MOST_DRAINS:
            raise LimitExceededError(f"expected at most {_MOST_DRAINS} drained nodes")
        drain = Drain(request.reason, current_caller().user, self._clock.time())
        span = self._spans.wanted_back("drain", names)
        try:
            self._set_drains(
                self._drains.all_drained(drain) if request.all else self._drains.drained(names, drain),
                "drain",
                span,
            )
            leaving = [name for name in (self._idle_set.announced() if request.all else names) if self._was_used(name)]
            remaining = context.time_remaining()
            released = await self._releaser.release(leaving, remaining, span.context) if leaving else []
            span.note(released=len(released))
        finally:
            span.end()
        self._log.info("drained", nodes=names, all=request.all, user=drain.user, reason=drain.reason)
        unconfirmed = sorted(set(leaving).difference(released))
        return scavenger_pb2.DrainNodesResponse(released=released, unconfirmed=unconfirmed)

    async def ResumeNodes(
        self, request: scavenger_pb2.ResumeNodesRequest, context: _Context
    ) -> scavenger_pb2.ResumeNodesResponse:
        """Lets drained nodes be used again."""
        del context
        names = _names_or_all(request.nodes, request.all)
        before = self._drains
        span = self._spans.wanted_back("resume", names)
        try:
            self._set_drains(DrainSet() if request.all else before.resumed(names), "resume", span)
        finally:
            span.end()
        resumed = sorted(before.nodes.keys() - self._drains.nodes.keys())
        self._log.info("resumed", nodes=resumed, all=request.all, user=current_caller().user)
        all_resumed = request.all and before.everything is not None
        return scavenger_pb2.ResumeNodesResponse(resumed=resumed, all_resumed=all_resumed)

    def _set_drains(self, drains: DrainSet, cause: str, span: Span) -> None:
        """Take over what is drained. It is stored first: a restart must not use nodes that were taken out.

        Raises:
            UnavailableError: it can't be stored.
        """
        try:
            self._state_file.write(DRAINS, drains.to_json())
        except OSError as error:
            raise UnavailableError(f"nothing is changed: the state file can't be written ({error})") from error
        self._drains = drains
        now = self._clock.time()
        self._change(self._idle_set.drain(now, drains), now, cause, span)
        self._reschedule.set()
        self._exclude()

    def _exclude(self) -> None:
        self._source.exclude(self._idle_set.cooldowns(), self._drains)

    def _was_used(self, name: str) -> bool:
        return self._idle_set.was_announced(name) or not self._seen

    async def ReportNodeFailures(
        self, request: scavenger_pb2.ReportNodeFailuresRequest, context: _Context
    ) -> scavenger_pb2.ReportNodeFailuresResponse:
        """Counts failures of work on nodes. Nodes on which work keeps failing leave, as if reclaimed."""
        del context
        _names([failure.node for failure in request.failures], "failures", ".node")
        now = self._clock.time()
        for failure in request.failures:
            reason = failure.reason[:_LONGEST_REASON]
            if (seconds := self._quarantine.failed(failure.node, now, reason)) > 0:
                self._change(self._idle_set.reclaim(now, [failure.node], seconds), now, "quarantine")
                self._log.warning("quarantined", node=failure.node, seconds=round(seconds), reason=reason)
        self._reschedule.set()
        self._exclude()
        self._state_file.try_write(RECLAIM_COOLDOWNS, self._idle_set.cooldowns())
        return scavenger_pb2.ReportNodeFailuresResponse(quarantined=self._quarantined(now))

    async def GetStatus(
        self, request: scavenger_pb2.GetStatusRequest, context: _Context
    ) -> scavenger_pb2.GetStatusResponse:
        """How the source and the placeholders fare, and which nodes are quarantined."""
        del request, context
        status = self._source.status()
        return scavenger_pb2.GetStatusResponse(
            source=self._section.source,
            seen=self._seen,
            stale=self._nodes.stale,
            queries=[query_message(query) for query in status.queries],
            quarantined=self._quarantined(self._clock.time()),
            placeholders=[placeholder_message(entry) for entry in status.placeholders],
            drained=drain_messages(self._drains),
        )

    def _gauges(self) -> Gauges:
        quarantined = len(self._quarantine.quarantined(self._clock.time()))
        return Gauges(self._source.status(), len(self._idle_set.members()), quarantined, self._nodes.stale)

    def _quarantined(self, now: float) -> list[scavenger_pb2.QuarantinedNode]:
        return [quarantine_message(name, record) for name, record in self._quarantine.quarantined(now).items()]

    async def _first_observation(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_OBSERVATION_SECONDS):
                await self._ready.wait()
        if not self._seen:
            raise UnavailableError("the source has not yet told which nodes are idle")

    async def _follow_source(self) -> None:
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                async for observation in self._source.observations():
                    pause = _FIRST_RETRY_SECONDS
                    self._observe(observation)
                return
            except (SourceError, OSError) as error:
                # The last observation stays: nodes have not left because a source fails.
                self._log.error("source failed, trying again", error=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_RETRY_SECONDS)

    async def _follow_deadlines(self) -> None:
        while True:
            self._reschedule.clear()
            deadline = self._idle_set.next_deadline()
            wait = None if deadline is None else min(max(0.0, deadline - self._clock.time()), _LONGEST_SLEEP_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._reschedule.wait()
            now = self._clock.time()
            self._change(self._idle_set.tick(now), now, "debounce")

    def _observe(self, observation: Observation) -> None:
        if observation.stale != self._nodes.stale:
            self._log.warning("the newest answer is too old" if observation.stale else "answers are fresh again")
        self._nodes.observe(observation)
        event = self._idle_set.observe(observation.time, observation.idle)
        just_ended = observation.ended and not self._source_ended
        self._source_ended = observation.ended
        if event or just_ended:
            now = self._clock.time()
            self._announce(
                event, observation.time, self._spans.observed(event, observation.time, self._source.status(), now)
            )
        self._seen = True
        self._ready.set()
        self._reschedule.set()

    def _change(self, event: IdleEvent, time: float, cause: str, part_of: Span | None = None) -> None:
        if event:
            self._announce(event, time, self._spans.changed(event, cause, time, part_of.context if part_of else None))

    def _announce(self, event: IdleEvent, time: float, span: Span) -> None:
        self._revision += 1
        self._event_time = time
        self._metrics.changed(event)
        self._events.publish(
            scavenger_pb2.WatchNodesResponse(
                joined=self._nodes.messages(event.joined, self._clock.time()),
                left=event.left,
                event_time=timestamp(time),
                revision=self._revision,
                source_ended=self._source_ended,
                trace_context=to_message(span.context),
            )
        )
        span.end()
        self._log.info(
            "event",
            revision=self._revision,
            joined=[node.name for node in event.joined],
            left=list(event.left),
            source_ended=self._source_ended,
        )


def _names_or_all(nodes: Sequence[str], everything: bool) -> list[str]:
    if not everything:
        return _names(nodes)
    if nodes:
        raise InvalidInputError("nodes", "none where all is set", list(nodes))
    return []


def _names(nodes: Sequence[str], field: str = "nodes", part: str = "") -> list[str]:
    if not nodes:
        raise InvalidInputError(field, "at least one node", [])
    return list(dict.fromkeys(check_node_names(nodes, field, part)))
