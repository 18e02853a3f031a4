"""A source that polls a batch scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import structlog

from malletrain.common.tasks import Crew
from malletrain.model.topology import GroupPath
from malletrain.runtime.clock import Clock
from malletrain.scavenger.machine.gpu_units import node_of_unit, path_of_unit
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts, Observation
from malletrain.scavenger.sources.base import NodeSource, NoPlaceholders, PlaceholderView, SourceStatus
from malletrain.scavenger.sources.schedulers.availability import (
    Forecast,
    NodeReservation,
    NodeStates,
    PlannedStart,
    available_nodes,
)
from malletrain.scavenger.sources.schedulers.idle_ages import IdleAges
from malletrain.scavenger.sources.schedulers.query import Query
from malletrain.scavenger.state_file import IDLE_AGES, ScavengerStateFile

_MIN_WAIT_SECONDS = 0.01
_STORE_SECONDS = 30.0
# Planned starts move with every backfill cycle. An answer that is older than so many intervals is not used.
_FORECAST_INTERVALS = 5.0
_MAX_TOLD = 10_000


@dataclass(frozen=True)
class SchedulerQueries:
    """What is asked of a scheduler; None where it can't answer.

    Attributes:
        nodes: Which nodes are idle.
        planned: When pending jobs are planned to start.
        reservations: What is reserved.
        classes: What the nodes are.
        topology: Where they are.
    """

    nodes: Query[NodeStates]
    planned: Query[tuple[PlannedStart, ...]] | None = None
    reservations: Query[tuple[NodeReservation, ...]] | None = None
    classes: Query[dict[str, NodeFacts]] | None = None
    topology: Query[dict[str, GroupPath]] | None = None

    def all(self) -> list[Query[Any]]:
        """The queries that are made."""
        every = (self.nodes, self.planned, self.reservations, self.classes, self.topology)
        return [query for query in every if query is not None]


@dataclass(frozen=True)
class StalenessPolicy:
    """How long answers are used, in seconds.

    Attributes:
        stale_seconds: When the newest answer about nodes is older, only nodes with a placeholder of ours are offered:
            who uses the others is not known.
        forecast_seconds: For how long planned starts and reservations are used.
    """

    stale_seconds: float
    forecast_seconds: float = 300.0


@dataclass(frozen=True)
class NodeSelection:
    """Which nodes count.

    Attributes:
        wanted: Whether the node of a name may be used.
        pool: Pool of the nodes for which the answers name none.
    """

    wanted: Callable[[str], bool] = field(default=lambda _: True)
    pool: str = ""


class PolledSource(NodeSource):
    """Combines the newest answers. Answers that fail, are late or can't be read leave the earlier ones in place."""

    def __init__(
        self,
        queries: SchedulerQueries,
        staleness: StalenessPolicy,
        selection: NodeSelection,
        clock: Clock,
        placeholders: PlaceholderView | None = None,
        state_file: ScavengerStateFile | None = None,
    ) -> None:
        """
        Args:
            queries: What to ask.
            staleness: For how long answers are used.
            selection: Which nodes count.
            clock: Wall clock.
            placeholders: Our placeholders; None: there are none.
            state_file: Keeps idle ages over a restart; None: they are forgotten.
        """
        self.queries = queries
        self._staleness = staleness
        self.selection = selection
        self._clock = clock
        self._placeholders = placeholders or NoPlaceholders()
        self._state_file = state_file
        self._section = f"{IDLE_AGES}{queries.nodes.source}"
        self._stored_at = clock.monotonic()
        stored = state_file.section(self._section) if state_file is not None else {}
        self._ages = IdleAges.restored(stored, clock.time())
        self._logged: set[tuple[str, str]] = set()
        self._log = structlog.get_logger(__name__).bind(source=queries.nodes.source)

    def past_lengths(self) -> Sequence[float]:
        """Lengths that were stored before a restart. Schedulers keep no record of idle nodes."""
        return self._ages.lengths

    def status(self) -> SourceStatus:
        """Counts and times of each query."""
        return SourceStatus(tuple(query.status() for query in self.queries.all()))

    def move_times(self, seconds: float) -> None:
        """See `NodeSource`. Planned starts and reservations are the scheduler's own times."""
        self._ages.move_times(seconds)

    async def close(self) -> None:
        """Store the idle ages. The commands have ended with `observations`."""
        self._store_ages()

    async def observations(self) -> AsyncIterator[Observation]:
        """One observation after every answer, beginning with the first about nodes, and one when that becomes stale."""
        news = asyncio.Event()
        crew = Crew(news.set)
        for query in self.queries.all():
            crew.start(query.follow(news.set), "a query of the scheduler")
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    # Not `wait_for`, which loses a cancellation that comes just as there is news.
                    async with asyncio.timeout(self._until_stale()):
                        await news.wait()
                news.clear()
                crew.check()
                # The first observation waits for every query: a node whose reservation is not known yet looks free.
                tried = all(query.tried for query in self.queries.all())
                if tried and (observation := self.observe()) is not None:
                    yield observation
        finally:
            await crew.close()

    def observe(self) -> Observation | None:
        """The present observation; None before the first answer about nodes."""
        states = self.queries.nodes.answer
        if states is None:
            return None
        self._tell_unclear(states)
        now = self._clock.time()
        held = self._placeholders.nodes()
        stale = self._is_stale()
        available = available_nodes(states, self._forecast(), now, self._placeholders.jobs())
        usable = held if stale else available.idle | held
        idle = self._ages.update(now, available.idle | held)
        if not stale and self._clock.monotonic() - self._stored_at >= _STORE_SECONDS:
            self._store_ages()
        names = sorted(name for name in usable if self.selection.wanted(name))
        return Observation(
            time=now,
            idle={name: idle[name] for name in names},
            ends=available.ends,
            facts=self._facts(states),
            known=states.known,
            stale=stale,
            reserved=available.reserved,
            offline=states.offline,
        )

    def _tell_unclear(self, states: NodeStates) -> None:
        """Log each node in a state that is not known, once."""
        new = [entry for entry in states.unclear.items() if entry not in self._logged][: _MAX_TOLD - len(self._logged)]
        for node, state in new:
            self._log.warning("a node is in a state that is not known; it is not used", node=node, state=state)
        self._logged.update(new)

    def _store_ages(self) -> None:
        if self._state_file is not None:
            self._stored_at = self._clock.monotonic()
            self._state_file.try_write(self._section, self._ages.content(self._clock.time()))

    def _forecast(self) -> Forecast:
        planned, reservations = self.queries.planned, self.queries.reservations
        limit = self._staleness.forecast_seconds
        reserved = reservations.fresh(limit) if reservations else None
        return Forecast((planned.fresh(limit) if planned else None) or (), reserved or (), reserved is not None)

    def _is_stale(self) -> bool:
        return self.queries.nodes.age_seconds > self._staleness.stale_seconds

    def _until_stale(self) -> float | None:
        if self.queries.nodes.answer is None or self._is_stale():
            return None
        return max(_MIN_WAIT_SECONDS, self._staleness.stale_seconds - self.queries.nodes.age_seconds)

    def _facts(self, states: NodeStates) -> dict[str, NodeFacts]:
        """Facts of all nodes: one on which a placeholder is about to start is neither idle nor held."""
        classes = (self.queries.classes.answer if self.queries.classes else None) or {}
        paths = (self.queries.topology.answer if self.queries.topology else None) or {}
        facts = {}
        for name in states.known:
            answered = states.facts.get(name, NO_FACTS)
            about = classes.get(name, answered)
            pool = answered.pool or self.selection.pool
            facts[name] = _place(about, pool, path_of_unit(name, paths.get(node_of_unit(name), about.topology)))
        return facts


@lru_cache(maxsize=8192)
def _place(facts: NodeFacts, pool: str, path: GroupPath) -> NodeFacts:
    return replace(facts, pool=pool, topology=path)


def forecast_validity(interval: float, stale_seconds: float) -> float:
    """How many seconds an answer about the future is used, if it is asked for every `interval` seconds."""
    return max(stale_seconds, _FORECAST_INTERVALS * interval)
