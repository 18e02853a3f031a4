"""The nodes that count as idle: follows the source and the debounces, and tells watchers of every event."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import structlog

from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError, UnavailableError
from malletrain.runtime.hub import Hub
from malletrain.runtime.messages import timestamp
from malletrain.runtime.tracing.propagation import to_message
from malletrain.runtime.tracing.spans import Span
from malletrain.scavenger.event_merging import followed_by
from malletrain.scavenger.event_spans import EventSpans
from malletrain.scavenger.idle_set import IdleEvent, IdleNode, IdleSet
from malletrain.scavenger.messages import NodeDescriber, staying_node_message, stays_message
from malletrain.scavenger.metrics import ScavengerMetrics
from malletrain.scavenger.sources.base import NodeSource, Observation, SourceError
from malletrain.scavenger.stay_changes import StayChanges
from malletrain.v1 import resources_pb2, scavenger_pb2

# The wall clock may be set: the debounce timer looks at it at least so often.
_LONGEST_SLEEP_SECONDS = 1.0
# How long a listing waits for the first observation.
_FIRST_OBSERVATION_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 30.0
_DESCRIBED_AT_ONCE = 256
_TOLD_AT_ONCE = 1000
"""A node takes some microseconds to tell, and ten times as long to describe."""


class IdleEvents:
    """Follows a source; every change of the idle set is one numbered event for all watchers.

    Attributes:
        idle_set: Decides which idle nodes count.
        nodes: Describes them.
        seen: Whether the source has told anything yet.
        revision: Number of the last event.
    """

    def __init__(
        self,
        source: NodeSource,
        idle_set: IdleSet,
        nodes: NodeDescriber,
        clock: Clock,
        metrics: ScavengerMetrics,
        spans: EventSpans,
    ) -> None:
        """Take over the parts; `run` starts them.

        Args:
            source: Tells which nodes are idle.
            idle_set: Decides which of them count.
            nodes: Describes them, and learns how long they stay.
            clock: Wall clock.
            metrics: Metrics for Prometheus.
            spans: Spans of events.
        """
        self.idle_set = idle_set
        self.nodes = nodes
        self.seen = False
        self.revision = 0
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._spans = spans
        self._events: Hub[scavenger_pb2.WatchNodesResponse] = Hub(merge=followed_by)
        self._event_time = clock.time()
        self._stay_changes = StayChanges(f"{self._event_time:.6f}")
        self._source_ended = False
        self._closing = False
        # Set once there is an observation, or once none will come.
        self._ready = asyncio.Event()
        self._reschedule = asyncio.Event()
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Follow the source and the debounce deadlines, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_source(), name="source")
            group.create_task(self._follow_deadlines(), name="deadlines")

    def close(self) -> None:
        """End the streams of all watchers."""
        self._closing = True
        self._ready.set()
        self._events.close()

    def reschedule(self) -> None:
        """Look at the deadlines again: they have changed."""
        self._reschedule.set()

    def change(self, event: IdleEvent, time: float, cause: str, part_of: Span | None = None) -> None:
        """Announce what a change of the idle set has brought about, if anything; deadlines are looked at again."""
        if event:
            self._announce(event, time, self._spans.changed(event, cause, time, part_of.context if part_of else None))
        self._reschedule.set()

    def may_be_in_use(self, name: str) -> bool:
        """Whether JobManager may know the node: it has counted as idle, or nothing has been seen since the start."""
        return self.idle_set.was_announced(name) or not self.seen

    async def first_observation(self) -> None:
        """Wait for it, for a moment.

        Raises:
            UnavailableError: there is none.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_OBSERVATION_SECONDS):
                await self._ready.wait()
        if not self.seen:
            raise UnavailableError("the source has not yet told which nodes are idle")

    async def page(self, size: int, token: str) -> tuple[list[resources_pb2.Node], str]:
        """Nodes that count as idle, and the token of the next page: the name of the last node of this one.

        Raises:
            InvalidInputError: the token is of no page.
        """
        nodes = self.idle_set.members()
        if token:
            last = self.idle_set.rank(token)
            if last is None:
                raise InvalidInputError("page_token", "a token of an earlier page", token)
            nodes = tuple(node for node in nodes if (self.idle_set.rank(node.name) or 0) > last)
        page = nodes[: size or None]
        described = await self._described_in_turns(page)
        return described, page[-1].name if len(page) < len(nodes) else ""

    async def stays(self, known: str) -> scavenger_pb2.GetStaysResponse:
        """What expected stays are computed from, as far as who has this token does not know it."""
        now = self._clock.time()
        news = self.nodes.news(self._stay_changes, known, self.idle_set.since(), now)
        message = stays_message(news, now)
        for begin in range(0, len(news.nodes), _TOLD_AT_ONCE):
            message.nodes.extend(map(staying_node_message, news.nodes[begin : begin + _TOLD_AT_ONCE]))
            await asyncio.sleep(0)
        return message

    async def watch(self, *, first: bool = False) -> AsyncGenerator[scavenger_pb2.WatchNodesResponse]:
        """The present nodes, then every event. Waits for the first observation: before it, no set would be true.

        Args:
            first: Whether events are told before they are told to others.

        Raises:
            UnavailableError: the service is ending.
        """
        await self._ready.wait()
        if self._closing:
            raise UnavailableError("the Scavenger is ending")
        with self._events.subscribe(first=first) as events:
            snapshot = scavenger_pb2.WatchNodesResponse(
                snapshot=True,
                event_time=timestamp(self._event_time),
                revision=self.revision,
                source_ended=self._source_ended,
            )
            # What happens meanwhile follows as events.
            snapshot.joined.extend(await self._described_in_turns(self.idle_set.members()))
            yield snapshot
            async for event in events:
                yield event

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds: debounces and cooldowns last as long as before."""
        self.idle_set.move_times(seconds)
        self.nodes.move_times(seconds)
        self._source.move_times(seconds)
        self._reschedule.set()

    def observe(self, observation: Observation) -> None:
        """Take over what the source has told."""
        if observation.stale != self.nodes.stale:
            self._log.warning("the newest answer is too old" if observation.stale else "answers are fresh again")
        self.nodes.observe(observation)
        event = self.idle_set.observe(observation.time, observation.idle)
        just_ended = observation.ended and not self._source_ended
        self._source_ended = observation.ended
        if event or just_ended:
            now = self._clock.time()
            self._announce(
                event, observation.time, self._spans.observed(event, observation.time, self._source.status(), now)
            )
        self.seen = True
        self._ready.set()
        self._reschedule.set()

    async def _follow_source(self) -> None:
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                async for observation in self._source.observations():
                    pause = _FIRST_RETRY_SECONDS
                    self.observe(observation)
                return
            except (SourceError, OSError) as error:
                # The last observation stays: nodes have not left because a source fails.
                self._log.error("source failed, trying again", error=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_RETRY_SECONDS)

    async def _follow_deadlines(self) -> None:
        while True:
            self._reschedule.clear()
            deadline = self.idle_set.next_deadline()
            wait = None if deadline is None else min(max(0.0, deadline - self._clock.time()), _LONGEST_SLEEP_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._reschedule.wait()
            now = self._clock.time()
            self.change(self.idle_set.tick(now), now, "debounce")

    def _described(self, nodes: tuple[IdleNode, ...]) -> list[resources_pb2.Node]:
        return self.nodes.messages(nodes, self._clock.time())

    async def _described_in_turns(self, nodes: tuple[IdleNode, ...]) -> list[resources_pb2.Node]:
        """Many nodes take long to describe: one that leaves meanwhile does not wait for that."""
        described: list[resources_pb2.Node] = []
        for begin in range(0, len(nodes), _DESCRIBED_AT_ONCE):
            described += self._described(nodes[begin : begin + _DESCRIBED_AT_ONCE])
            await asyncio.sleep(0)
        return described

    def _announce(self, event: IdleEvent, time: float, span: Span) -> None:
        self.revision += 1
        self._event_time = time
        self._metrics.changed(event)
        self._events.publish(
            scavenger_pb2.WatchNodesResponse(
                joined=self._described(event.joined),
                left=event.left,
                event_time=timestamp(time),
                revision=self.revision,
                source_ended=self._source_ended,
                trace_context=to_message(span.context),
            )
        )
        span.end()
        self._log.info(
            "event",
            revision=self.revision,
            joined=[node.name for node in event.joined],
            left=list(event.left),
            source_ended=self._source_ended,
        )
