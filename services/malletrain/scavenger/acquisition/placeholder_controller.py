"""Keeps placeholders on idle nodes: tells their machine what happens, and does what it decides by the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping

import structlog

from malletrain.model.node_needs import NodeNeeds
from malletrain.runtime.clock import Clock
from malletrain.runtime.kernel.machine_loop import MachineLoop, StepRecorder
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry, RegisteredAgent, agent_placeholder_id
from malletrain.scavenger.acquisition.batch_client import BatchClient
from malletrain.scavenger.machine.node_worth import MAX_DEMANDS
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.scavenger.machine.placeholder_machine import (
    AgentsChanged,
    ClockSet,
    DecisionDue,
    PlaceholdersListed,
    PlaceholderStep,
    PlaceholderSubmitted,
    SeenAgent,
    StartsForgotten,
    Stimulus,
    SubmissionFailed,
)
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholders import (
    EndedPlaceholder,
    ListedPlaceholder,
    PlaceholderPhase,
    PlaceholderPolicy,
    find_lost,
    find_unlisted,
)
from malletrain.scavenger.sources.base import PlaceholderStatus, SourceError

_DECIDE_SECONDS = 1.0
_FIND_SECONDS = 5.0


class PlaceholderController:
    """Submits and cancels placeholders. Its `nodes` and `jobs` are the `PlaceholderView` of the inner source.

    Attributes:
        has_listed: Whether the scheduler has ever listed our placeholders.
        unwanted: Nodes that are to be given back.
    """

    def __init__(
        self,
        scheduler: str,
        client: BatchClient,
        registry: AgentRegistry,
        policy: PlaceholderPolicy,
        wanted: Callable[[], int],
        clock: Clock,
        recorder: StepRecorder[PlaceholderState, Stimulus, PlaceholderStep],
        *,
        demands: Callable[[], Mapping[NodeNeeds, int]] = dict,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            scheduler: Name of the source, e.g. "slurm".
            client: Sends commands to the scheduler.
            registry: Where agents report.
            policy: When to submit and to cancel.
            wanted: How many nodes there is work for.
            clock: Wall clock.
            recorder: Runs the machine.
            demands: The same by what jobs need of each node.
        """
        self._scheduler = scheduler
        self._client = client
        self._registry = registry
        self._policy = policy
        self._wanted = wanted
        self._demands = demands
        self._clock = clock
        self._loop: MachineLoop[PlaceholderState, Stimulus, PlaceholderStep] = MachineLoop(
            PlaceholderState(), recorder, clock, lambda _: None
        )
        self._candidates: Mapping[str, float] = {}
        self._facts: Mapping[str, NodeFacts] = {}
        self.unwanted: frozenset[str] = frozenset()
        self._unanswered = 0
        self._error = ""
        self._asked_at = -math.inf
        self.has_listed = False
        self._unconfirmed: set[str] = set()
        self._defect: Exception | None = None
        self._unsure = False
        self._doubted: Mapping[str, str] = {}
        self._changed = asyncio.Event()
        self._log = structlog.get_logger(__name__).bind(scheduler=scheduler)

    @property
    def state(self) -> PlaceholderState:
        """The placeholders."""
        return self._loop.state

    def nodes(self) -> frozenset[str]:
        """Nodes on which an agent of ours is and that are not wanted back."""
        return frozenset(self._registry.present)

    def jobs(self) -> frozenset[str]:
        """Identifiers of our placeholders."""
        return frozenset(self.state.placeholders)

    def expects(self, node: str) -> bool:
        """Whether there may be a placeholder on a node: one that is known, or that the scheduler has not confirmed yet.

        Before the scheduler has listed them, those of an earlier life of this service may be anywhere.
        """
        return not self.has_listed or node in self._unconfirmed or node in self.state.nodes

    def status(self) -> PlaceholderStatus:
        """How many placeholders there are, and whether submission is backed off."""
        backoff = self.state.backoff
        pending, running, ending = (
            len(self.state.in_phase(phase))
            for phase in (PlaceholderPhase.PENDING, PlaceholderPhase.RUNNING, PlaceholderPhase.ENDING)
        )
        return PlaceholderStatus(
            source=self._scheduler,
            pending=pending,
            running=running,
            ending=ending,
            failures_in_a_row=backoff.failures or self._unanswered,
            paused=backoff.paused(self._policy.backoff),
            retry_at=self._next_attempt() if backoff.active else None,
            node=backoff.node,
            error=backoff.error or (self._error if self._unanswered else ""),
        )

    def _next_attempt(self) -> float:
        """When the next placeholder is tried: the back-off may be over while all idle nodes are still avoided."""
        avoided = [self.state.avoided_until.get(node, -math.inf) for node in self._candidates]
        return max(self.state.backoff.retry_at, min(avoided, default=-math.inf))

    def set_candidates(self, usable: Mapping[str, float], facts: Mapping[str, NodeFacts]) -> None:
        """Take over which nodes may be held.

        Args:
            usable: Until when each is expected to be idle, in seconds since the epoch.
            facts: What the nodes are.
        """
        self._candidates = usable
        self._facts = facts
        self._changed.set()

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds."""
        self._loop.apply(ClockSet(seconds))

    def set_unwanted(self, nodes: frozenset[str]) -> None:
        """Take over which nodes are to be given back: their placeholders are cancelled, and none is submitted."""
        if nodes != self.unwanted:
            self.unwanted = nodes
            self._changed.set()

    async def give_all_back(self) -> None:
        """Cancel all placeholders, at the end. If the scheduler does not answer, they end by themselves."""
        try:
            await self._client.cancel(sorted(self.state.placeholders))
        except SourceError as error:
            self._log.warning("placeholders stay", ids=sorted(self.state.placeholders), error=str(error))

    def agents_changed(self) -> None:
        """Take over which agents the registry knows."""
        agents = AgentsChanged(
            present=tuple(map(_seen, self._registry.present.values())),
            leaving=tuple(map(_seen, self._registry.leaving)),
            departed=tuple(map(_seen, self._registry.take_departed())),
            unwanted=self.unwanted,
        )
        try:
            step = self._loop.apply(agents)
        except Exception as error:
            self._defect = error  # an agent's call is all that it would end here
            self._changed.set()
            raise
        if step.to_be_listed:
            self._list_soon()
        self._changed.set()

    async def run(self) -> None:
        """Submit and cancel placeholders until cancelled. Failures of the scheduler are retried."""
        while True:
            try:
                await self.step()
            except SourceError as error:
                self._log.warning("the scheduler does not answer", error=str(error))
                await asyncio.sleep(_DECIDE_SECONDS)
            # Not `wait_for`, which loses a cancellation that comes just as there is news.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DECIDE_SECONDS):
                    await self._changed.wait()
            self._changed.clear()

    async def step(self) -> None:
        """List the placeholders if that is due, then decide and act once.

        Raises:
            SourceError: the scheduler does not answer.
            Exception: the machine has failed, now or when agents had changed.
        """
        if self._defect is not None:
            raise self._defect
        await self._refresh()
        await self._apply()

    async def _refresh(self) -> None:
        """List the placeholders: at the start, while there are any, and when a submission may have got through."""
        # Why a placeholder does not start must be known before it is cancelled for that.
        interval = min(_FIND_SECONDS, self._policy.patience_seconds / 2)
        due = self._clock.monotonic() - self._asked_at >= interval
        if not due or not (self.state.placeholders or self._unsure or not self.has_listed):
            return
        self._asked_at, asked_at = self._clock.monotonic(), self._clock.time()
        agents = self._agents()
        try:
            listed = await self._client.find()
        except SourceError as error:
            self._unanswered, self._error = self._unanswered + 1, str(error)
            raise
        self._unanswered = 0
        missing = self.state.missing(listed, asked_at, self._policy)
        doubtful = [*missing, *find_unlisted(agents, listed)]
        ends = await self._client.explain(doubtful) if doubtful else {}
        self.has_listed = True
        self._unsure = False
        self._unconfirmed.clear()
        ended = {identifier: ends[identifier] for identifier in missing if identifier in ends}
        for identifier, end in ended.items():
            self._log.warning("placeholder ended early", id=identifier, reason=end.reason)
        self._loop.apply(PlaceholdersListed(listed, ended, asked_at))
        still = self._agents()
        agents = {node: identifier for node, identifier in agents.items() if still.get(node) == identifier}
        await self._leave_lost(agents, listed, ends)
        self.agents_changed()
        self._changed.clear()

    def _agents(self) -> dict[str, str]:
        """Placeholder of each agent that has one and is not leaving, by node."""
        present = self._registry.present
        placeholders = {node: agent.placeholder for node, agent in present.items()}
        return {
            node: identifier for node, identifier in placeholders.items() if identifier != agent_placeholder_id(node)
        }

    def _list_soon(self) -> None:
        """List the placeholders before the next one is submitted."""
        self._asked_at, self._unsure = -math.inf, True

    async def _leave_lost(
        self,
        agents: Mapping[str, str],
        listed: Mapping[str, ListedPlaceholder],
        ends: Mapping[str, EndedPlaceholder],
    ) -> None:
        """Have agents leave whose placeholders the scheduler has forgotten: it may give their nodes to others."""
        lost = find_lost(agents, listed, ends, self._doubted)
        self._doubted = lost.doubted
        if lost.pending:
            self._loop.apply(StartsForgotten(tuple(lost.pending.values())))
        for node, reason in lost.reasons.items():
            self._log.warning("agent without a placeholder must leave", node=node, id=agents[node], reason=reason)
        self._registry.ask_to_leave(lost.reasons)
        if lost.pending:
            await self._client.cancel(sorted(lost.pending.values()))

    async def _apply(self) -> None:
        """Decide, cancel and submit. The first placeholder that is refused ends the round: the next may fail alike."""
        before = self.state
        decision = self._loop.apply(self._due()).decision
        assert decision is not None
        actions = decision.actions
        self._log_backoff(before)
        if actions.cancel:
            self._log.info("placeholders cancelled", ids=actions.cancel)
            await self._client.cancel(actions.cancel)
        for node, seconds in actions.submit:
            if not await self._submit(node, seconds):
                break

    def _due(self) -> DecisionDue:
        demands = dict(self._demands())  # recorded: it must not change later
        by_kinds = self._facts and any(demands) and len(demands) <= MAX_DEMANDS
        return DecisionDue(
            self._candidates,
            self._wanted(),
            self.unwanted,
            demands if by_kinds else {},
            self._facts if by_kinds else {},
        )

    async def _submit(self, node: str, seconds: float) -> bool:
        begun = self._clock.time()
        self._unconfirmed.add(node)
        try:
            identifier = await self._client.submit(node, seconds, self._facts.get(node, NO_FACTS))
        except SourceError as error:
            self._unsure = True  # a command that took too long may have got through
            before = self.state
            self._loop.apply(SubmissionFailed(node, str(error), begun))
            self._log_backoff(before)
            return False
        self._log.info("placeholder submitted", node=node, id=identifier, seconds=round(seconds))
        self._loop.apply(PlaceholderSubmitted(identifier, node, seconds))
        self._unconfirmed.discard(node)
        return True

    def _log_backoff(self, before: PlaceholderState) -> None:
        backoff = self.state.backoff
        if backoff.failures > before.backoff.failures:
            self._log.warning(
                "placeholders fail",
                node=backoff.node,
                error=backoff.error,
                failures_in_a_row=backoff.failures,
                paused=backoff.paused(self._policy.backoff),
                retry_seconds=round(backoff.retry_at - self._clock.time()),
            )


def _seen(agent: RegisteredAgent) -> SeenAgent:
    return SeenAgent(agent.placeholder, agent.node, bool(agent.workers))
