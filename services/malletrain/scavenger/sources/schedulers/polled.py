"""A source that asks a batch scheduler again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from malletrain.runtime.clock import Clock
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts, Observation, QueryStatus
from malletrain.scavenger.sources.schedulers.answers import Horizon, NodeStates, PlannedStart, Reservation, combine
from malletrain.scavenger.sources.schedulers.holdings import Holdings, NoHoldings
from malletrain.scavenger.sources.schedulers.memory import Memory
from malletrain.scavenger.sources.schedulers.query import Query

_SHORTEST_WAIT_SECONDS = 0.01
# Planned starts move with every backfill cycle; an answer that is older than so many intervals is no longer believed.
_BELIEVED_INTERVALS = 5.0


@dataclass(frozen=True)
class Questions:
    """What is asked of a scheduler; those that it can't answer are left out.

    Attributes:
        nodes: Who is idle.
        planned: When pending jobs are planned to start.
        reservations: What is reserved.
        classes: What the nodes are.
    """

    nodes: Query[NodeStates]
    planned: Query[tuple[PlannedStart, ...]] | None = None
    reservations: Query[tuple[Reservation, ...]] | None = None
    classes: Query[dict[str, NodeFacts]] | None = None

    def all(self) -> list[Query[Any]]:
        """Those that are asked."""
        return [query for query in (self.nodes, self.planned, self.reservations, self.classes) if query is not None]


@dataclass(frozen=True)
class Trust:
    """How long answers are believed, and which nodes count.

    Attributes:
        stale_seconds: When the newest answer about nodes is older, nodes that no placeholder of ours holds are left
            out: nobody knows who uses them.
        horizon_seconds: How long what is known of the future is believed.
        wanted: Whether a node may be used at all.
        pool: Pool of nodes for which the answers name none.
    """

    stale_seconds: float
    horizon_seconds: float = 300.0
    wanted: Callable[[str], bool] = field(default=lambda _: True)
    pool: str = ""


class PolledSource:
    """Combines the newest answers; survives a scheduler that stalls, fails, or talks garbage."""

    def __init__(
        self,
        questions: Questions,
        trust: Trust,
        clock: Clock,
        holdings: Holdings | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Ask nothing yet.

        Args:
            questions: What to ask.
            trust: How far to believe the answers.
            clock: Wall clock.
            holdings: What we hold ourselves; None: nothing.
            memory: Keeps idle ages for the next life; None: they are forgotten.
        """
        self.questions = questions
        self._trust = trust
        self._clock = clock
        self._holdings = holdings or NoHoldings()
        self._memory = memory or Memory(None, clock)
        self._ages = self._memory.recall()

    def order(self) -> Sequence[str]:
        """Unknown before the scheduler is asked."""
        return ()

    def past_lengths(self) -> Sequence[float]:
        """Those of an earlier life: schedulers keep no record of idle nodes."""
        return self._ages.lengths

    def status(self) -> Sequence[QueryStatus]:
        """How each question fares."""
        return [query.status() for query in self.questions.all()]

    def close(self) -> None:
        """Idle ages are written down; the commands have ended with `observations`."""
        self._memory.keep(self._ages, at_once=True)

    async def observations(self) -> AsyncIterator[Observation]:
        """A picture after every answer, from the first one about nodes on, and one when that has become too old."""
        news = asyncio.Event()
        following = [asyncio.create_task(query.follow(news.set)) for query in self.questions.all()]
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), self._until_stale())
                news.clear()
                for task in following:
                    if task.done():
                        task.result()
                # The first picture waits for every question: a node whose reservation is not known yet looks free.
                tried = all(query.tried for query in self.questions.all())
                if tried and (observation := self.observe()) is not None:
                    yield observation
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def observe(self) -> Observation | None:
        """The present picture; None where nothing was ever heard."""
        states = self.questions.nodes.answer
        if states is None:
            return None
        now = self._clock.time()
        held = self._holdings.nodes()
        stale = self._is_stale()
        known = combine(states, self._horizon(), now, self._holdings.jobs())
        usable = held if stale else known.idle | held
        idle = self._ages.update(now, known.idle | held)
        if not stale:
            self._memory.keep(self._ages)
        names = sorted(name for name in usable if self._trust.wanted(name))
        return Observation(
            time=now,
            idle={name: idle[name] for name in names},
            ends=known.ends,
            facts=self._facts(states),
            known=states.known,
            stale=stale,
        )

    def _horizon(self) -> Horizon:
        planned, reservations = self.questions.planned, self.questions.reservations
        limit = self._trust.horizon_seconds
        found = reservations.fresh(limit) if reservations else None
        return Horizon((planned.fresh(limit) if planned else None) or (), found or (), found is not None)

    def _is_stale(self) -> bool:
        return self.questions.nodes.age_seconds > self._trust.stale_seconds

    def _until_stale(self) -> float | None:
        if self.questions.nodes.answer is None or self._is_stale():
            return None
        return max(_SHORTEST_WAIT_SECONDS, self._trust.stale_seconds - self.questions.nodes.age_seconds)

    def _facts(self, states: NodeStates) -> dict[str, NodeFacts]:
        """Of all nodes: one that a placeholder is about to hold is not idle any more, and not yet held."""
        classes = (self.questions.classes.answer if self.questions.classes else None) or {}
        found = {}
        for name in states.known:
            told = states.facts.get(name, NO_FACTS)
            found[name] = _in_pool(classes.get(name, told), told.pool or self._trust.pool)
        return found


@lru_cache(maxsize=1024)
def _in_pool(facts: NodeFacts, pool: str) -> NodeFacts:
    return replace(facts, pool=pool)


def believed_seconds(interval: float, stale_seconds: float) -> float:
    """How long an answer about the future is believed that is asked for every `interval` seconds."""
    return max(stale_seconds, _BELIEVED_INTERVALS * interval)
