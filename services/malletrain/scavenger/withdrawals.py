"""Nodes that are taken out of use though they are idle: reclaimed, drained or quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import LimitExceededError, UnavailableError
from malletrain.runtime.tracing.spans import Span
from malletrain.scavenger.drains import Drain, DrainSet, read_drains
from malletrain.scavenger.event_spans import EventSpans
from malletrain.scavenger.idle_events import IdleEvents
from malletrain.scavenger.job_manager_client import Releaser
from malletrain.scavenger.metrics import CONFIRMED, ScavengerMetrics
from malletrain.scavenger.quarantine import NodeFailureRecord, Quarantine
from malletrain.scavenger.sources.base import NodeSource
from malletrain.scavenger.state_file import DRAINS, RECLAIM_COOLDOWNS, ScavengerStateFile

_MOST_DRAINS = 100_000


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What came of a withdrawal.

    Attributes:
        released: Nodes that JobManager has confirmed to be free.
        others: Reclaimed: nodes that have never counted as idle. Drained: nodes that may still be in use.
    """

    released: list[str]
    others: list[str]


class Withdrawals:
    """Takes nodes out at once, tells watchers, and has JobManager confirm that the nodes are free."""

    def __init__(
        self,
        events: IdleEvents,
        source: NodeSource,
        releaser: Releaser,
        state_file: ScavengerStateFile,
        quarantine: Quarantine,
        clock: Clock,
        metrics: ScavengerMetrics,
        spans: EventSpans,
    ) -> None:
        """Take out what was drained before the start.

        Args:
            events: Announces nodes that leave and come back.
            source: Is told not to hold nodes that are out.
            releaser: Has JobManager free nodes.
            state_file: Keeps reclaims and drains over a restart.
            quarantine: Counts failures.
            clock: Wall clock.
            metrics: Metrics for Prometheus.
            spans: Spans of withdrawals.
        """
        self._events = events
        self._source = source
        self._releaser = releaser
        self._state_file = state_file
        self._quarantine = quarantine
        self._clock = clock
        self._metrics = metrics
        self._spans = spans
        self._drains = read_drains(state_file.section(DRAINS))
        self._log = structlog.get_logger(__name__)
        events.idle_set.drain(clock.time(), self._drains)

    @property
    def drains(self) -> DrainSet:
        """What is drained."""
        return self._drains

    def quarantined(self) -> Mapping[str, NodeFailureRecord]:
        """Quarantined nodes, by name."""
        return self._quarantine.quarantined(self._clock.time())

    def exclude(self) -> None:
        """Tell the source which nodes are out."""
        self._source.exclude(self._events.idle_set.cooldowns(), self._drains)

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
        known = [name for name in names if self._events.may_be_in_use(name)]
        begin = self._clock.monotonic()
        span = self._spans.wanted_back("reclaim", names)
        self._put_out(names, cooldown, "reclaim", span)
        self._state_file.try_write(RECLAIM_COOLDOWNS, self._events.idle_set.cooldowns())
        released: list[str] = []
        try:
            if known:
                released = await self._releaser.release(known, remaining, span.context)
        finally:
            span.note(released=len(released))
            span.end()
            self.exclude()
            if len(released) < len(known):
                self._metrics.reclaim_unconfirmed()
        if known and len(released) == len(known):
            self._metrics.reclaim_step(CONFIRMED, self._clock.monotonic() - begin)
        unknown = [name for name in names if name not in known]
        self._log.info("reclaimed", nodes=names, released=released, unknown=unknown, cooldown_seconds=cooldown)
        return Withdrawn(released, unknown)

    async def drain(self, names: list[str], everything: bool, drain: Drain, remaining: float | None) -> Withdrawn:
        """Take nodes, or all of them, out until they are resumed.

        Args:
            names: Names of the nodes.
            everything: Whether to drain all nodes, those that nobody knows yet included.
            drain: By whom and why.
            remaining: Seconds until the caller's deadline; None where it has none.

        Raises:
            LimitExceededError: too many nodes would be drained.
            UnavailableError: the drains can't be stored, and nothing is changed; or JobManager can't be reached.
        """
        if len(self._drains.nodes) + len(names) > _MOST_DRAINS:
            raise LimitExceededError(f"expected at most {_MOST_DRAINS} drained nodes")
        span = self._spans.wanted_back("drain", names)
        try:
            drains = self._drains.all_drained(drain) if everything else self._drains.drained(names, drain)
            self._set_drains(drains, "drain", span)
            wanted = self._events.idle_set.announced() if everything else names
            leaving = [name for name in wanted if self._events.may_be_in_use(name)]
            released = await self._releaser.release(leaving, remaining, span.context) if leaving else []
            span.note(released=len(released))
        finally:
            span.end()
        self._log.info("drained", nodes=names, all=everything, user=drain.user, reason=drain.reason)
        return Withdrawn(released, sorted(set(leaving).difference(released)))

    def resume(self, names: list[str], everything: bool) -> DrainSet:
        """Let drained nodes be used again.

        Returns:
            What was drained before.

        Raises:
            UnavailableError: the drains can't be stored; nothing is changed.
        """
        before = self._drains
        span = self._spans.wanted_back("resume", names)
        try:
            self._set_drains(DrainSet() if everything else before.resumed(names), "resume", span)
        finally:
            span.end()
        return before

    def failed(self, failures: Iterable[tuple[str, str]]) -> None:
        """Count failures of work, each by node and reason. Nodes on which work keeps failing leave, as if reclaimed."""
        now = self._clock.time()
        for node, reason in failures:
            if (seconds := self._quarantine.failed(node, now, reason)) > 0:
                self._put_out([node], seconds, "quarantine")
                self._log.warning("quarantined", node=node, seconds=round(seconds), reason=reason)
        self._events.reschedule()
        self.exclude()
        self._state_file.try_write(RECLAIM_COOLDOWNS, self._events.idle_set.cooldowns())

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds: cooldowns and quarantines last as long as before."""
        self._quarantine.move_times(seconds)
        self.exclude()
        self._state_file.try_write(RECLAIM_COOLDOWNS, self._events.idle_set.cooldowns())

    def _put_out(self, names: Sequence[str], cooldown: float, cause: str, part_of: Span | None = None) -> None:
        now = self._clock.time()
        self._events.change(self._events.idle_set.reclaim(now, names, cooldown), now, cause, part_of)

    def _set_drains(self, drains: DrainSet, cause: str, span: Span) -> None:
        # It is stored first: a restart must not use nodes that were taken out.
        try:
            self._state_file.write(DRAINS, drains.to_json())
        except OSError as error:
            raise UnavailableError(f"nothing is changed: the state file can't be written ({error})") from error
        self._drains = drains
        now = self._clock.time()
        self._events.change(self._events.idle_set.drain(now, drains), now, cause, span)
        self.exclude()
