"""Nodes that are taken out of use though they are idle: reclaimed, drained or quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
import structlog

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import LimitExceededError, UnavailableError
from malletrain.runtime.tracing.propagation import metadata_of
from malletrain.runtime.tracing.spans import Span
from malletrain.scavenger.idle_events import IdleEvents
from malletrain.scavenger.machine.drains import Drain, DrainSet
from malletrain.scavenger.machine.quarantine import NodeFailureRecord
from malletrain.scavenger.machine.stimuli import (
    DrainsChanged,
    FailuresReported,
    NodeFailure,
    NodesReclaimed,
    QuarantineEnded,
)
from malletrain.scavenger.state_file import DRAINS, ScavengerStateFile
from malletrain.scavenger.telemetry.event_spans import EventSpans
from malletrain.scavenger.telemetry.metrics import CONFIRMED, ScavengerMetrics
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc

_MAX_DRAINS = 100_000


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The result of a withdrawal.

    Attributes:
        released: Nodes that JobManager has confirmed to be free.
        others: Reclaimed: nodes that have never counted as idle. Drained: nodes that may still be in use.
    """

    released: list[str]
    others: list[str]


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a resumption has changed.

    Attributes:
        drains: What was drained before.
        lifted: Nodes that were quarantined before and are no longer.
    """

    drains: DrainSet
    lifted: list[str]


class Withdrawals:
    """Takes nodes out at once, tells watchers, and has JobManager confirm that the nodes are free."""

    def __init__(
        self,
        events: IdleEvents,
        releaser: Releaser,
        state_file: ScavengerStateFile,
        clock: Clock,
        metrics: ScavengerMetrics,
        spans: EventSpans,
    ) -> None:
        self._events = events
        self._releaser = releaser
        self._state_file = state_file
        self._clock = clock
        self._metrics = metrics
        self._spans = spans
        self._log = structlog.get_logger(__name__)

    @property
    def drains(self) -> DrainSet:
        """What is drained."""
        return self._events.machine.drains

    def quarantined(self) -> Mapping[str, NodeFailureRecord]:
        """Quarantined nodes, by name."""
        return self._events.machine.quarantine.quarantined(self._clock.time())

    async def reclaim(self, names: list[str], cooldown: float, remaining: float | None) -> Withdrawn:
        """Take nodes out for a while.

        JobManager is asked for every node that has ever counted as idle, so that a repeated call is confirmed, too.

        Args:
            names: Names of the nodes.
            cooldown: For how many seconds.
            remaining: Seconds until the caller's deadline; None where it has none.

        Raises:
            UnavailableError: JobManager can't be reached, or fails; the nodes are out.
        """
        names = self._events.machine.idle.units_of(names)
        known = [name for name in names if self._events.machine.may_be_in_use(name)]
        begin = self._clock.monotonic()
        span = self._spans.wanted_back("reclaim", names)
        self._events.apply(NodesReclaimed(tuple(names), cooldown), span)
        released: list[str] = []
        try:
            if known:
                released = await self._releaser.release(known, remaining, span.context)
        finally:
            span.note(released=len(released))
            span.end()
            self._events.exclude()
            if len(released) < len(known):
                self._metrics.unconfirmed.inc()
        if known and len(released) == len(known):
            self._metrics.reclaim_step(CONFIRMED, self._clock.monotonic() - begin)
        unknown = [name for name in names if name not in known]
        self._log.info("nodes reclaimed", nodes=names, released=released, unknown=unknown, cooldown_seconds=cooldown)
        return Withdrawn(released, unknown)

    async def drain(self, names: list[str], everything: bool, drain: Drain, remaining: float | None) -> Withdrawn:
        """Take nodes, or all of them, out until they are resumed.

        Args:
            names: Names of the nodes.
            everything: Whether to drain all nodes, unknown ones included.
            drain: By whom and why.
            remaining: Seconds until the caller's deadline; None where it has none.

        Raises:
            LimitExceededError: too many nodes would be drained.
            UnavailableError: the drains can't be stored, and nothing is changed; or JobManager can't be reached.
        """
        if len(self.drains.nodes) + len(names) > _MAX_DRAINS:
            raise LimitExceededError(f"expected at most {_MAX_DRAINS} drained nodes")
        span = self._spans.wanted_back("drain", names)
        try:
            drains = self.drains.all_drained(drain) if everything else self.drains.drained(names, drain)
            self._set_drains(drains, "drain", span)
            idle = self._events.machine.idle
            wanted = idle.announced() if everything else idle.units_of(names)
            leaving = [name for name in wanted if self._events.machine.may_be_in_use(name)]
            released = await self._releaser.release(leaving, remaining, span.context) if leaving else []
            span.note(released=len(released))
        finally:
            span.end()
        self._log.info("nodes drained", nodes=names, all=everything, user=drain.user, reason=drain.reason)
        return Withdrawn(released, sorted(set(leaving).difference(released)))

    def resume(self, names: list[str], everything: bool) -> Resumed:
        """Let drained and quarantined nodes be used again.

        Returns:
            What was drained or quarantined before.

        Raises:
            UnavailableError: the drains can't be stored; nothing is changed.
        """
        drained, quarantined = self.drains, self.quarantined()
        span = self._spans.wanted_back("resume", names)
        try:
            self._set_drains(DrainSet() if everything else drained.resumed(names), "resume", span)
            units = (*names, *self._events.machine.idle.units_of(names))
            self._events.apply(QuarantineEnded(None if everything else units), span)
        finally:
            span.end()
        still = self.quarantined()
        return Resumed(drained, [name for name in quarantined if name not in still])

    def count_failures(self, failures: Iterable[NodeFailure]) -> None:
        """Count failures of work. Nodes on which work keeps failing leave, as if reclaimed."""
        self._events.apply(FailuresReported(tuple(failures)))

    def _set_drains(self, drains: DrainSet, cause: str, span: Span) -> None:
        # It is stored first: a restart must not use nodes that were taken out.
        try:
            self._state_file.write(DRAINS, drains.to_json())
        except OSError as error:
            raise UnavailableError(f"nothing is changed: the state file can't be written ({error})") from error
        self._events.apply(DrainsChanged(drains, cause), span)


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
