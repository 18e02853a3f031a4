"""Keeps placeholders on idle nodes: the ledger, the scheduler's commands and the agents, kept in step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from malletrain.runtime.clock import Clock
from malletrain.scavenger.acquisition.batch import Batch
from malletrain.scavenger.acquisition.desk import AgentDesk
from malletrain.scavenger.acquisition.ledger import Ledger, Orders, Rules
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts, SourceError

_DECIDE_SECONDS = 1.0
_FIND_SECONDS = 5.0


class Keeper:
    """Our holdings; see `malletrain.scavenger.sources.schedulers.holdings.Holdings`."""

    def __init__(self, batch: Batch, desk: AgentDesk, rules: Rules, wanted: Callable[[], int], clock: Clock) -> None:
        """Hold nothing yet.

        Args:
            batch: Speaks to the scheduler.
            desk: Where agents report.
            rules: When to submit and to cancel.
            wanted: How many nodes there is work for.
            clock: Wall clock.
        """
        self._batch = batch
        self._desk = desk
        self._rules = rules
        self._wanted = wanted
        self._clock = clock
        self._ledger = Ledger()
        self._usable: Mapping[str, float] = {}
        self._facts: Mapping[str, NodeFacts] = {}
        self._found_at = float("-inf")
        self._unsure = False
        self._stirred = asyncio.Event()
        self._log = structlog.get_logger(__name__)

    @property
    def ledger(self) -> Ledger:
        """What is held."""
        return self._ledger

    @property
    def knows(self) -> bool:
        """Whether the scheduler has told which placeholders there are."""
        return self._found_at > float("-inf")

    def nodes(self) -> frozenset[str]:
        """Nodes on which a placeholder of ours runs and that nobody wants back."""
        return frozenset(self._desk.present)

    def jobs(self) -> frozenset[str]:
        """Identifiers of our placeholders."""
        return frozenset(self._ledger.placeholders)

    def offer(self, usable: Mapping[str, float], facts: Mapping[str, NodeFacts]) -> None:
        """Nodes that may be taken.

        Args:
            usable: Until when they are expected to be idle, in seconds since the epoch.
            facts: What they are.
        """
        self._usable = usable
        self._facts = facts
        self._stirred.set()

    def stir(self) -> None:
        """Agents have come or gone."""
        now = self._clock.time()
        for identifier in self._desk.gone():
            self._ledger = self._ledger.ended(identifier)
        for entry in self._desk.present.values():
            self._ledger = self._ledger.arrived(entry.placeholder, entry.node, now)
        for entry in self._desk.leaving:
            self._ledger = self._ledger.taken(entry.placeholder, now)
        idle = frozenset(node for node, entry in self._desk.present.items() if not entry.workers)
        self._ledger = self._ledger.work(idle, self._ledger.running - self._desk.present.keys(), now)
        self._stirred.set()

    async def run(self) -> None:
        """Submit and cancel, until cancelled; survives a scheduler that does not answer."""
        while True:
            try:
                await self._look()
                await self._act()
            except SourceError as error:
                self._log.warning("the scheduler does not answer", error=str(error))
                await asyncio.sleep(_DECIDE_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), _DECIDE_SECONDS)
            self._stirred.clear()

    async def _look(self) -> None:
        """Ask which placeholders there are: at the start, while there are any, and when that is unclear."""
        due = self._clock.monotonic() - self._found_at >= _FIND_SECONDS
        if due and (self._ledger.placeholders or self._unsure or not self.knows):
            found = await self._batch.find()
            self._ledger = self._ledger.seen(found, self._clock.time())
            self._found_at = self._clock.monotonic()
            self._unsure = False
            self.stir()
            self._stirred.clear()

    async def _act(self) -> None:
        now = self._clock.time()
        usable = {node: until - now for node, until in self._usable.items()}
        self._ledger, orders = self._ledger.decide(usable, self._wanted(), self._rules, now)
        await self._cancel(orders)
        for node, seconds in orders.submit:
            try:
                identifier = await self._batch.submit(node, seconds, self._facts.get(node, NO_FACTS))
            except SourceError as error:
                self._log.warning("no placeholder", node=node, error=str(error))
                self._unsure = True  # it may have been submitted all the same
                self._ledger = self._ledger.refuse(node, self._clock.time() + self._rules.refusal)
                continue
            self._log.info("placeholder submitted", node=node, id=identifier, seconds=round(seconds))
            self._ledger = self._ledger.submitted(identifier, node, self._clock.time())

    async def _cancel(self, orders: Orders) -> None:
        if orders.cancel:
            self._log.info("placeholders cancelled", ids=orders.cancel)
            await self._batch.cancel(orders.cancel)

    async def cancel_all(self) -> None:
        """Give back every node, at a graceful end."""
        identifiers = sorted(self._ledger.placeholders)
        if identifiers:
            await self._batch.cancel(identifiers)
