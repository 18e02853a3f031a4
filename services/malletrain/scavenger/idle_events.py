"""The nodes that count as idle: follows the source and the debounces, and tells watchers of every event."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable

import structlog

from malletrain.common.backoff import Backoff
from malletrain.common.tasks import ending, lasting
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError, UnavailableError
from malletrain.runtime.hub import Hub
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.machine_loop import MachineLoop, MachineStep
from malletrain.runtime.messages import timestamp
from malletrain.runtime.pieces import pieces
from malletrain.runtime.tracing.spans import Span
from malletrain.scavenger.machine.idle_set import IdleNode
from malletrain.scavenger.machine.machine import Effects, ScavengerMachine
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.machine.stays import StayChanges
from malletrain.scavenger.machine.stimuli import (
    AnnounceEvent,
    Due,
    Effect,
    ExcludeNodes,
    NodesObserved,
    NoteQuarantine,
    StaysRequested,
    Stimulus,
    StoreCooldowns,
    StoreQuarantine,
)
from malletrain.scavenger.sources.base import NodeSource, SourceError
from malletrain.scavenger.state_file import QUARANTINE, RECLAIM_COOLDOWNS, ScavengerStateFile
from malletrain.scavenger.telemetry.event_spans import EventSpans
from malletrain.scavenger.telemetry.metrics import ScavengerMetrics
from malletrain.scavenger.wire import event_message, merge_events, node_message, staying_node_message, stays_message
from malletrain.v1 import resources_pb2, scavenger_pb2

Recorder = FlightRecorder[ScavengerMachine, Stimulus, Effects]

# The wall clock may be set: the debounce timer looks at it at least so often.
_MAX_SLEEP_SECONDS = 1.0
# How long a listing waits for the first observation.
_FIRST_OBSERVATION_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 30.0
_DESCRIBED_AT_ONCE = 256
_TOLD_AT_ONCE = 1000
"""A node takes some microseconds to tell, and ten times as long to describe."""


class IdleEvents:
    """Follows a source and tells the machine; every change of the idle set is one numbered event for all watchers.

    Attributes:
        machine: Decides which idle nodes count.
    """

    def __init__(
        self,
        source: NodeSource,
        machine: ScavengerMachine,
        recorder: Recorder,
        state_file: ScavengerStateFile,
        clock: Clock,
        metrics: ScavengerMetrics,
        spans: EventSpans,
        note_quarantine: Callable[[NoteQuarantine], object] = lambda _: None,
    ) -> None:
        self._note_quarantine = note_quarantine
        self.machine = machine
        self._source = source
        self._state_file = state_file
        self._clock = clock
        self._metrics = metrics
        self._spans = spans
        self._events: Hub[scavenger_pb2.WatchNodesResponse] = Hub(merge=merge_events)
        self._stay_changes = StayChanges(f"{machine.event_time:.6f}")
        self._closing = False
        # Set once there is an observation, or once none will come.
        self._ready = asyncio.Event()
        self._loop = MachineLoop[ScavengerMachine, Stimulus, Effects, Span](machine, recorder, clock, self._perform_all)
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Follow the source and the debounce deadlines, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(ending(self._follow_source(), "source"), name="source")
            deadlines = self._loop.follow_time(Due(), self._due_at)
            group.create_task(lasting(deadlines, "deadlines"), name="deadlines")

    def close(self) -> None:
        """End the streams of all watchers."""
        self._closing = True
        self._ready.set()
        self._events.close()

    def apply(self, stimulus: Stimulus, part_of: Span | None = None) -> Effects:
        """Tell the machine, and do what it wants done, which is returned; deadlines are looked at again.

        Args:
            stimulus: What happens.
            part_of: The call that it is part of; None: none.
        """
        return self._loop.apply(stimulus, part_of)

    def exclude(self) -> None:
        """Tell the source which nodes are out."""
        self._source.exclude(self.machine.idle.cooldowns(), self.machine.drains)

    def _perform_all(self, step: MachineStep[ScavengerMachine, Stimulus, Effects, Span]) -> None:
        for effect in step.result:
            self._perform(effect, step.detail)

    def _perform(self, effect: Effect, part_of: Span | None) -> None:
        match effect:
            case AnnounceEvent():
                self._announce(effect, part_of)
            case ExcludeNodes():
                self.exclude()
            case StoreCooldowns():
                self._state_file.try_write(RECLAIM_COOLDOWNS, self.machine.idle.cooldowns())
            case StoreQuarantine():
                self._state_file.try_write(QUARANTINE, self.machine.quarantine.to_json())
            case NoteQuarantine():
                node, reason, by = effect.failure
                if effect.is_check:
                    self._metrics.failed_checks.inc()
                self._log.warning("node quarantined", node=node, seconds=round(effect.seconds), reason=reason, by=by)
                self._note_quarantine(effect)

    async def first_observation(self) -> None:
        """Wait for it, for a moment.

        Raises:
            UnavailableError: there is none.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_OBSERVATION_SECONDS):
                await self._ready.wait()
        if not self.machine.seen:
            raise UnavailableError("the source has not yet told which nodes are idle")

    async def page(self, size: int, token: str) -> tuple[list[resources_pb2.Node], str]:
        """Nodes that count as idle, and the token of the next page: the name of the last node of this one.

        Raises:
            InvalidInputError: the token is of no page.
        """
        idle = self.machine.idle
        nodes = idle.members()
        if token:
            last = idle.rank(token)
            if last is None:
                raise InvalidInputError("page_token", "a token of an earlier page", token)
            nodes = tuple(node for node in nodes if (idle.rank(node.name) or 0) > last)
        page = nodes[: size or None]
        described = await self._described_in_turns(page)
        return described, page[-1].name if len(page) < len(nodes) else ""

    async def stays(self, known: str) -> scavenger_pb2.GetStaysResponse:
        """What expected stays are computed from, as far as who has this token does not know it."""
        self.apply(StaysRequested())
        now, machine = self._clock.time(), self.machine
        news = self._stay_changes.news(known, machine.idle.since(), machine.newest, machine.stays.current)
        message = stays_message(news, now)
        for begin in range(0, len(news.nodes), _TOLD_AT_ONCE):
            message.nodes.extend(map(staying_node_message, news.nodes[begin : begin + _TOLD_AT_ONCE]))
            await asyncio.sleep(0)
        return message

    async def watch(
        self, *, first: bool = False, in_pieces: bool = False
    ) -> AsyncGenerator[scavenger_pb2.WatchNodesResponse]:
        """The present nodes, then every event. Waits for the first observation: before it, no set would be true.

        Args:
            first: Whether events are told before they are told to others.
            in_pieces: Whether the present nodes may come in several messages.

        Raises:
            UnavailableError: the service is ending.
        """
        await self._ready.wait()
        if self._closing:
            raise UnavailableError("the Scavenger is ending")
        with self._events.subscribe(first=first) as events:
            snapshot = scavenger_pb2.WatchNodesResponse(
                snapshot=True,
                event_time=timestamp(self.machine.event_time),
                revision=self.machine.revision,
                source_ended=self.machine.newest.ended,
            )
            # What happens meanwhile follows as events.
            present = await self._described_in_turns(self.machine.idle.members())
            for nodes, more in pieces(present) if in_pieces else [(present, False)]:
                snapshot.joined.extend(nodes)
                snapshot.more = more
                yield snapshot
                snapshot = scavenger_pb2.WatchNodesResponse(
                    event_time=snapshot.event_time, revision=snapshot.revision, source_ended=snapshot.source_ended
                )
            async for event in events:
                yield event

    def observe(self, observation: Observation) -> None:
        """Take over what the source has told."""
        if observation.stale != self.machine.newest.stale:
            self._log.warning("the newest answer is too old" if observation.stale else "answers are fresh again")
        self.apply(NodesObserved(observation))
        self._ready.set()

    async def _follow_source(self) -> None:
        backoff = Backoff(_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        while True:
            try:
                async for observation in self._source.observations():
                    backoff.succeed()
                    self.observe(observation)
                return
            except (SourceError, OSError) as error:
                # The last observation stays: nodes have not left because a source fails.
                pause = backoff.fail()
                self._log.error("source failed, trying again", error=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)

    def _due_at(self, machine: ScavengerMachine) -> float:
        """When the next debounce or cooldown ends, or earlier: asking the wall clock tells whether it was set."""
        deadline = machine.idle.next_deadline()
        if deadline is None:
            return math.inf
        seconds = deadline - self._clock.time()
        return self._clock.monotonic() + min(seconds, _MAX_SLEEP_SECONDS)

    def _described(self, nodes: tuple[IdleNode, ...]) -> list[resources_pb2.Node]:
        now = self._clock.time()
        return [node_message(node, self.machine, now) for node in nodes]

    async def _described_in_turns(self, nodes: tuple[IdleNode, ...]) -> list[resources_pb2.Node]:
        """Many nodes take long to describe: one that leaves meanwhile does not wait for that."""
        self.apply(StaysRequested())
        described: list[resources_pb2.Node] = []
        for begin in range(0, len(nodes), _DESCRIBED_AT_ONCE):
            described += self._described(nodes[begin : begin + _DESCRIBED_AT_ONCE])
            await asyncio.sleep(0)
        return described

    def _announce(self, announced: AnnounceEvent, part_of: Span | None) -> None:
        event, time, revision = announced.event, announced.unix_seconds, announced.revision
        source_ended = self.machine.newest.ended
        if announced.cause == "source":
            span = self._spans.begin_observed(event, time, self._source.status(), self._clock.time())
        else:
            span = self._spans.begin_caused(event, announced.cause, time, part_of.context if part_of else None)
        self._metrics.note_change(event)
        self._events.publish(
            event_message(announced, self._described(event.joined), span.context, source_ended=source_ended)
        )
        span.end()
        self._log.info(
            "idle nodes changed",
            revision=revision,
            joined=[node.name for node in event.joined],
            left=list(event.left),
            source_ended=source_ended,
        )
