"""Placeholders as a machine: what agents and the scheduler tell, in; submissions and cancellations, out. Pure."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from malletrain.model.node_needs import NodeNeeds
from malletrain.runtime.kernel.recording import Moment, RecordedMachine
from malletrain.scavenger.machine.node_worth import NodeWorth
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholder_validation import validate_actions, validate_state
from malletrain.scavenger.machine.placeholders import (
    EndedPlaceholder,
    ListedPlaceholder,
    PlaceholderActions,
    PlaceholderPhase,
    PlaceholderPolicy,
)


class SeenAgent(NamedTuple):
    """An agent that has reported.

    Attributes:
        placeholder: Identifier of its placeholder.
        node: Its node.
        works: Whether workers are on its node.
    """

    placeholder: str
    node: str
    works: bool = False


@dataclass(frozen=True)
class AgentsChanged:
    """Which agents there are.

    Attributes:
        present: Those that are connected and not leaving.
        leaving: Those that are about to end.
        departed: Those that have ended since the last time.
        unwanted: Nodes that we give back.
    """

    present: tuple[SeenAgent, ...] = ()
    leaving: tuple[SeenAgent, ...] = ()
    departed: tuple[SeenAgent, ...] = ()
    unwanted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PlaceholdersListed:
    """The scheduler has listed our placeholders.

    Attributes:
        listed: By identifier.
        ends: How placeholders have ended that were `missing` in the list, by identifier.
        asked_at: When the scheduler was asked, in seconds since the epoch.
    """

    listed: Mapping[str, ListedPlaceholder]
    ends: Mapping[str, EndedPlaceholder]
    asked_at: float


@dataclass(frozen=True)
class StartsForgotten:
    """The scheduler has forgotten that some placeholders run, and would start them again: they are cancelled.

    Attributes:
        identifiers: Of the placeholders.
    """

    identifiers: tuple[str, ...]


@dataclass(frozen=True)
class DecisionDue:
    """It is time to decide what is submitted and cancelled.

    Attributes:
        candidates: Nodes that may be held, and until when each is expected to be idle, in seconds since the epoch.
        wanted: How many nodes there is work for.
        unwanted: Nodes that are to be given back.
        demands: How many nodes jobs want, by what they need of each; empty where no node is preferred.
        facts: What nodes are, where `demands` is not empty.
    """

    candidates: Mapping[str, float]
    wanted: int
    unwanted: frozenset[str] = frozenset()
    demands: Mapping[NodeNeeds, int] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class PlaceholderSubmitted:
    """The scheduler has taken a placeholder.

    Attributes:
        identifier: The scheduler's identifier.
        node: The node that it asks for.
        seconds: Its time limit.
    """

    identifier: str
    node: str
    seconds: float


@dataclass(frozen=True)
class SubmissionFailed:
    """The scheduler has refused a placeholder, or did not answer.

    Attributes:
        node: The node that it asked for.
        error: The scheduler's words.
        begun: When the scheduler was asked, in seconds since the epoch.
    """

    node: str
    error: str
    begun: float


@dataclass(frozen=True)
class ClockSet:
    """The wall clock was set by so many seconds."""

    seconds: float


Stimulus = (
    AgentsChanged
    | PlaceholdersListed
    | StartsForgotten
    | DecisionDue
    | PlaceholderSubmitted
    | SubmissionFailed
    | ClockSet
)


class PlaceholderDecision(NamedTuple):
    """What was decided, and of what.

    Attributes:
        usable: Nodes that could be held, and for how many seconds they are expected to be idle.
        wanted: How many nodes there is work for.
        worth: Which nodes there is work for; None: any.
        made_at: When, in seconds since the epoch.
        actions: What is to be done.
    """

    usable: Mapping[str, float]
    wanted: int
    worth: NodeWorth | None
    made_at: float
    actions: PlaceholderActions


@dataclass(frozen=True)
class PlaceholderStep:
    """What a stimulus has led to.

    Attributes:
        state: The state after it.
        changed: Whether that is another one.
        decision: What was decided, if that was due.
        to_be_listed: Whether the scheduler must list the placeholders before the next decision: an agent has gone by
            itself, and whether its placeholder has ended, too, only the scheduler knows.
    """

    state: PlaceholderState
    changed: bool
    decision: PlaceholderDecision | None = None
    to_be_listed: bool = False


class RecordedPlaceholders(RecordedMachine[PlaceholderState, Stimulus, PlaceholderStep]):
    """How the flight recorder runs and checks the placeholders of one scheduler."""

    service = "scavenger_placeholders"
    file_prefix = "placeholder-stimuli"
    state_type = PlaceholderState
    policy_type = PlaceholderPolicy
    stimulus_types = typing.get_args(Stimulus)
    policy: PlaceholderPolicy

    def advance(self, state: PlaceholderState, stimulus: Stimulus, now: Moment) -> PlaceholderStep:
        """Apply a stimulus."""
        return _advance(state, stimulus, now.unix_seconds, self.policy)

    def check(self, before: PlaceholderState, result: PlaceholderStep) -> None:
        """Check all placeholders, and what was decided."""
        validate_state(result.state)
        if (decision := result.decision) is not None:
            usable, wanted, worth, made_at, actions = decision
            if worth is not None:  # held nodes of no use do not count among the wanted ones
                wanted += len(worth.useless(sorted(before.active_nodes)))
            validate_actions(before, actions, usable, wanted, self.policy, made_at)

    def state_after(self, before: PlaceholderState, result: PlaceholderStep) -> PlaceholderState:
        """The state after a stimulus."""
        del before
        return result.state

    def is_recorded(self, stimulus: Stimulus, result: PlaceholderStep) -> bool:
        """What changes nothing is left out: decisions are due every second."""
        del stimulus
        return result.changed


def _advance(state: PlaceholderState, stimulus: Stimulus, now: float, policy: PlaceholderPolicy) -> PlaceholderStep:
    decision, to_be_listed = None, False
    match stimulus:
        case AgentsChanged():
            after, to_be_listed = _see_agents(state, stimulus, now, policy)
        case PlaceholdersListed():
            after = state
            for identifier, end in stimulus.ends.items():
                after = after.ended_early(identifier, end, now, policy)
            after = after.listed(stimulus.listed, stimulus.asked_at, now)
        case StartsForgotten():
            after = state
            for identifier in stimulus.identifiers:
                after = after.cancelled(identifier, now, "the scheduler has forgotten that it runs")
        case DecisionDue():
            after, decision = _decide(state, stimulus, now, policy)
        case PlaceholderSubmitted():
            after = state.submitted(stimulus.identifier, stimulus.node, now, now + stimulus.seconds)
        case SubmissionFailed():
            after = state.submission_failed(stimulus.node, stimulus.error, stimulus.begun, now, policy)
        case ClockSet():
            after = state.moved(stimulus.seconds)
    return PlaceholderStep(after, after != state, decision, to_be_listed)


def _see_agents(
    state: PlaceholderState, agents: AgentsChanged, now: float, policy: PlaceholderPolicy
) -> tuple[PlaceholderState, bool]:
    to_be_listed = False
    for agent in agents.departed:
        known = state.placeholders.get(agent.placeholder)
        if known is None or not state.may_be_on(agent.placeholder, agent.node):
            continue
        to_be_listed |= known.phase is not PlaceholderPhase.ENDING
        state = state.ended(agent.placeholder, now)
    for agent in agents.present:
        if state.may_be_on(agent.placeholder, agent.node):
            state = state.started(agent.placeholder, agent.node, now)
    for agent in agents.leaving:
        if not state.may_be_on(agent.placeholder, agent.node):
            continue
        if agent.node in agents.unwanted:
            state = state.given_back(agent.placeholder, now)
        else:
            state = state.preempted(agent.placeholder, now, policy)
    idle = frozenset(agent.node for agent in agents.present if not agent.works)
    silent = state.running - {agent.node for agent in agents.present}
    return state.observed(idle, silent, now), to_be_listed


def _decide(
    state: PlaceholderState, due: DecisionDue, now: float, policy: PlaceholderPolicy
) -> tuple[PlaceholderState, PlaceholderDecision]:
    usable = {node: until - now for node, until in due.candidates.items()}
    worth = NodeWorth(due.demands, due.facts) if due.demands else None
    after, actions = state.decide(usable, due.wanted, policy, now, due.unwanted, worth)
    return after, PlaceholderDecision(usable, due.wanted, worth, now, actions)
