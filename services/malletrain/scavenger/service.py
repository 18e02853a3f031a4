"""The Scavenger over gRPC: which nodes are idle, which join, which leave."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import structlog

from malletrain.common.tasks import start_task
from malletrain.model.node_needs import NeedError, TraitCensus, check_needs
from malletrain.model.topology import TopologyPreference
from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.access.identity import Role, current_caller
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock, WatchedClock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.node_names import check_node_names
from malletrain.runtime.node_needs_messages import needs_from_proto
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.topology_messages import level_from_proto, preference_from_proto, replica_from_proto
from malletrain.scavenger.idle_events import IdleEvents, Recorder
from malletrain.scavenger.machine.drains import Drain, read_drains
from malletrain.scavenger.machine.idle_set import IdleSet
from malletrain.scavenger.machine.machine import CHECK, ScavengerMachine
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.machine.quarantine import Quarantine, QuarantinePolicy, read_records
from malletrain.scavenger.machine.recording import RecordedScavenger
from malletrain.scavenger.machine.slow_nodes import read_speeds
from malletrain.scavenger.machine.stays import StayEstimator
from malletrain.scavenger.machine.stimuli import ClockMoved, NodeFailure
from malletrain.scavenger.notifications.notifier import NodeNotifier
from malletrain.scavenger.settings import NodeNotificationSettings, ScavengerSettings
from malletrain.scavenger.slow_node_watch import SlowNodeWatch
from malletrain.scavenger.sources.base import NodeSource
from malletrain.scavenger.sources.build import build_source, past_lengths
from malletrain.scavenger.state_file import DRAINS, NODE_SPEEDS, QUARANTINE, RECLAIM_COOLDOWNS, ScavengerStateFile
from malletrain.scavenger.telemetry.event_spans import EventSpans
from malletrain.scavenger.telemetry.metrics import Gauges, ScavengerMetrics
from malletrain.scavenger.wire import (
    census_of,
    drain_messages,
    placeholder_message,
    quarantine_message,
    query_message,
    slow_node_message,
    suitable_in_groups,
    suitable_message,
)
from malletrain.scavenger.withdrawals import Releaser, Withdrawals
from malletrain.v1 import scavenger_pb2, scavenger_pb2_grpc

SERVICE_NAME = scavenger_pb2.DESCRIPTOR.services_by_name["ScavengerService"].full_name

_MAX_REASON_LENGTH = 500
_JOB_MANAGER = "job_manager"
_MIN_RECORDED = 40
"""Stimuli that are recorded; observations of ten thousand nodes are long."""

_Context = grpc.aio.ServicerContext[Any, Any]


def create(
    settings: Settings, section: ScavengerSettings, clock: Clock, credential: ServiceCredential
) -> ScavengerService:
    """Create the service; an event loop must be running.

    Raises:
        InvalidInputError: a setting or a trace can't be used; names the setting, or the file and line.
    """
    metrics = ScavengerMetrics()
    clock = watched = WatchedClock(clock)
    state_file = ScavengerStateFile(settings.state_dir)
    notifier = NodeNotifier(section.notifications, state_file, clock)
    slow = SlowNodeWatch(
        Peers(settings, credential),
        read_speeds(state_file.section(NODE_SPEEDS), section.slow_node_share),
        lambda name: _pool_of(machine.newest, name),
        lambda content: state_file.try_write(NODE_SPEEDS, content),
        note=notifier.note_slow,
    )
    source = build_source(section, settings, state_file, clock, credential, metrics.reclaim_step, slow.note_speed)
    stays = StayEstimator(
        [*past_lengths(section), *source.past_lengths()], horizon_seconds=section.stay_horizon_seconds
    )
    # Nodes that are held were idle for so long before they were taken. Static nodes have no debounce: they are never
    # idle between two jobs, and count at once after a restart.
    held = any(scheduler.hold.held for scheduler in (section.slurm, section.pbs))
    debounce = section.debounce_seconds if section.source != "static" and not held else 0.0
    idle_set = IdleSet(debounce, source.order(), _stored_cooldowns(state_file), read_drains(state_file.section(DRAINS)))
    machine = ScavengerMachine(idle_set, stays, _stored_quarantine(section, state_file), clock.time())
    recorder = FlightRecorder(
        settings.state_dir / "debug", RecordedScavenger(), settings.validate_state, min_stimuli=_MIN_RECORDED
    )
    releaser = Releaser(open_channel(settings.peer("job_manager"), credential), section.release_deadline_seconds)
    service = ScavengerService(source, machine, recorder, releaser, state_file, section, clock, metrics, slow, notifier)
    watched.follow(service.move_times)
    return service


def _pool_of(newest: Observation, name: str) -> str | None:
    """The pool of a node; None: the source does not know it."""
    facts = newest.facts.get(name)
    return facts.pool_key if facts is not None else None


def _stored_cooldowns(state_file: ScavengerStateFile) -> dict[str, float]:
    section = state_file.section(RECLAIM_COOLDOWNS)
    return {name: float(until) for name, until in section.items() if isinstance(until, int | float)}


def _stored_quarantine(section: ScavengerSettings, state_file: ScavengerStateFile) -> Quarantine:
    policy = QuarantinePolicy(
        section.quarantine_failures,
        section.quarantine_half_life_seconds,
        section.quarantine_longest_seconds,
        section.node_check.retry_seconds,
        section.node_check.longest_retry_seconds,
    )
    return Quarantine(policy, read_records(state_file.section(QUARANTINE)))


class ScavengerService(scavenger_pb2_grpc.ScavengerServiceServicer):
    """Answers calls; `IdleEvents` follows the source, `Withdrawals` takes nodes out.

    Attributes:
        source: Where observations of nodes come from.
        events: Follows the source, and tells of changes of the idle set.
        slow_watch: Knows which nodes count as slow.
    """

    def __init__(
        self,
        source: NodeSource,
        machine: ScavengerMachine,
        recorder: Recorder,
        releaser: Releaser,
        state_file: ScavengerStateFile,
        section: ScavengerSettings,
        clock: Clock,
        metrics: ScavengerMetrics | None = None,
        slow: SlowNodeWatch | None = None,
        notifier: NodeNotifier | None = None,
    ) -> None:
        """Take over the parts; `run` starts them.

        Args:
            source: Tells which nodes are idle.
            machine: Decides which of them count, and learns how long they stay.
            recorder: Records what the machine is told.
            releaser: Has JobManager free reclaimed nodes; closed by `close`.
            state_file: Keeps reclaims over a restart.
            section: Settings.
            clock: Wall clock.
            metrics: Metrics for Prometheus.
            slow: Follows which nodes are called slow; None: nobody says so.
            notifier: Tells the operator of nodes that are not well; None: nobody is told.
        """
        self.source = source
        self._machine = machine
        self._census: tuple[Observation, TraitCensus] | None = None
        self._releaser = releaser
        self._section = section
        self._clock = clock
        self._failed = False
        self._metrics = metrics or ScavengerMetrics()
        self._spans = EventSpans()
        self.slow_watch = slow or SlowNodeWatch(None)
        self._notifier = notifier or NodeNotifier(NodeNotificationSettings(), state_file, clock)
        self.events = IdleEvents(
            source,
            machine,
            recorder,
            state_file,
            clock,
            self._metrics,
            self._spans,
            self._notifier.note_quarantine,
        )
        self._withdrawals = Withdrawals(self.events, releaser, state_file, clock, self._metrics, self._spans)
        self._log = structlog.get_logger(__name__)

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        host.add(SERVICE_NAME, scavenger_pb2_grpc.add_ScavengerServiceServicer_to_server, self)
        self._metrics.register(host.metrics, self._gauges)
        self._spans.register(host.tracer)

    async def run(self) -> None:
        """Follow the source and the debounce deadlines, until cancelled."""
        self.events.exclude()
        self._notifier.note_stored(self._withdrawals.quarantined(), lambda by: by == CHECK)
        watching = start_task(self.slow_watch.run(), "slow nodes")
        telling = start_task(self._notifier.run(), "notices of nodes")
        try:
            await self.events.run()
        except Exception:
            self._failed = True
            raise
        finally:
            watching.cancel()
            telling.cancel()

    async def close(self) -> None:
        """End the streams; give nodes back that are held, and end the replay of a trace.

        After a defect nodes stay held, as after a kill: the next Scavenger finds their placeholders again.
        """
        self.events.close()
        if not self._failed:
            await self.source.close()
        await self._releaser.close()
        await self.slow_watch.close()

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds: debounces, cooldowns and quarantines last as long as before."""
        self._log.warning("the clock was set", seconds=round(seconds, 3))
        self.source.move_times(seconds)
        self.events.apply(ClockMoved(seconds))

    async def ListNodes(
        self, request: scavenger_pb2.ListNodesRequest, context: _Context
    ) -> scavenger_pb2.ListNodesResponse:
        """The nodes that count as idle; a page token is the name of the last node of the page before."""
        del context
        if request.page_size < 0:
            raise InvalidInputError("page_size", "at least 0", request.page_size)
        await self.events.first_observation()
        revision = self._machine.revision
        nodes, token = await self.events.page(request.page_size, request.page_token)
        return scavenger_pb2.ListNodesResponse(nodes=nodes, next_page_token=token, revision=revision)

    async def WatchNodes(
        self, request: scavenger_pb2.WatchNodesRequest, context: _Context
    ) -> AsyncIterator[scavenger_pb2.WatchNodesResponse]:
        """The present nodes, then every event; JobManager, which releases nodes, is told first."""
        del context
        caller = current_caller()
        releases = caller.role is Role.SERVICE and caller.user == _JOB_MANAGER
        async with contextlib.aclosing(self.events.watch(first=releases, in_pieces=request.in_pieces)) as events:
            async for event in events:
                yield event

    async def GetStays(
        self, request: scavenger_pb2.GetStaysRequest, context: _Context
    ) -> scavenger_pb2.GetStaysResponse:
        """What expected stays are computed from, as far as the caller does not know it."""
        del context
        await self.events.first_observation()
        stays = await self.events.stays(request.known)
        stays.slow_nodes.extend(self.slow_watch.counting)
        return stays

    async def ReclaimNodes(
        self, request: scavenger_pb2.ReclaimNodesRequest, context: _Context
    ) -> scavenger_pb2.ReclaimNodesResponse:
        """Takes nodes out at once, and answers once JobManager has confirmed that they are free."""
        names = _names(request.nodes)
        cooldown = request.hold_seconds or self._section.reclaim_hold_seconds
        if not 0 < cooldown < math.inf:
            raise InvalidInputError("hold_seconds", "a finite number, at least 0", request.hold_seconds)
        done = await self._withdrawals.reclaim(names, cooldown, context.time_remaining())
        return scavenger_pb2.ReclaimNodesResponse(released=done.released, unknown=done.others)

    async def DrainNodes(
        self, request: scavenger_pb2.DrainNodesRequest, context: _Context
    ) -> scavenger_pb2.DrainNodesResponse:
        """Takes nodes out until they are resumed, and has JobManager confirm that they are free."""
        names = _names_or_all(request.nodes, request.all)
        if len(request.reason) > _MAX_REASON_LENGTH:
            raise InvalidInputError("reason", f"at most {_MAX_REASON_LENGTH} characters", request.reason)
        drain = Drain(request.reason, current_caller().user, self._clock.time())
        done = await self._withdrawals.drain(names, request.all, drain, context.time_remaining())
        return scavenger_pb2.DrainNodesResponse(released=done.released, unconfirmed=done.others)

    async def ResumeNodes(
        self, request: scavenger_pb2.ResumeNodesRequest, context: _Context
    ) -> scavenger_pb2.ResumeNodesResponse:
        """Lets drained and quarantined nodes be used again."""
        del context
        done = self._withdrawals.resume(_names_or_all(request.nodes, request.all), request.all)
        before = done.drains
        resumed = sorted(before.nodes.keys() - self._withdrawals.drains.nodes.keys())
        self._log.info("nodes resumed", nodes=resumed, lifted=done.lifted, all=request.all, user=current_caller().user)
        all_resumed = request.all and before.everything is not None
        return scavenger_pb2.ResumeNodesResponse(resumed=resumed, all_resumed=all_resumed, released=done.lifted)

    async def ReportNodeFailures(
        self, request: scavenger_pb2.ReportNodeFailuresRequest, context: _Context
    ) -> scavenger_pb2.ReportNodeFailuresResponse:
        """Counts failures of work on nodes. Nodes on which work keeps failing leave, as if reclaimed."""
        del context
        _names([failure.node for failure in request.failures], "failures", ".node")
        self._withdrawals.count_failures(
            NodeFailure(failure.node, failure.reason[:_MAX_REASON_LENGTH], failure.by[:_MAX_REASON_LENGTH])
            for failure in request.failures
        )
        return scavenger_pb2.ReportNodeFailuresResponse(quarantined=self._quarantined())

    async def GetStatus(
        self, request: scavenger_pb2.GetStatusRequest, context: _Context
    ) -> scavenger_pb2.GetStatusResponse:
        """How the source and the placeholders fare, and which nodes are quarantined."""
        del request, context
        status = self.source.status()
        return scavenger_pb2.GetStatusResponse(
            source=self._section.source,
            seen=self._machine.seen,
            stale=self._machine.newest.stale,
            queries=[query_message(query) for query in status.queries],
            quarantined=self._quarantined(),
            placeholders=[placeholder_message(entry) for entry in status.placeholders],
            drained=drain_messages(self._withdrawals.drains),
            slow=map(slow_node_message, self.slow_watch.nodes),
        )

    async def CountSuitableNodes(
        self, request: scavenger_pb2.CountSuitableNodesRequest, context: _Context
    ) -> scavenger_pb2.CountSuitableNodesResponse:
        """How many of the nodes that the source knows are such as a job needs."""
        del context
        needs = needs_from_proto(request.needs)
        try:
            check_needs(needs)
        except NeedError as error:
            raise InvalidInputError(f"needs.{error.field}", error.expected, error.got) from None
        newest = self._machine.newest
        if self._census is None or self._census[0] is not newest:
            self._census = newest, census_of(newest)
        preference, level = preference_from_proto(request.topology, "topology"), level_from_proto(request, "")
        nodes = replica_from_proto(request, "")
        groups = suitable_in_groups(newest, needs, level) if preference.requires else None
        replica = nodes if preference is TopologyPreference.REQUIRE_REPLICA else None
        return suitable_message(needs, self._census[1], groups, replica)

    def _gauges(self) -> Gauges:
        machine, quarantined = self._machine, self._withdrawals.quarantined()
        return Gauges(
            self.source.status(),
            len(machine.idle.since()),
            len(quarantined),
            machine.newest.stale,
            len(self.slow_watch.counting),
        )

    def _quarantined(self) -> list[scavenger_pb2.QuarantinedNode]:
        return [quarantine_message(name, record) for name, record in self._withdrawals.quarantined().items()]


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
