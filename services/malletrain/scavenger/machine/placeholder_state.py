"""Which placeholders there are, and which are to be submitted or cancelled. Pure. Times are seconds since the epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from malletrain.common.backoff import pause_after
from malletrain.scavenger.machine.node_worth import NodeWorth
from malletrain.scavenger.machine.placeholders import (
    EndedPlaceholder,
    ListedPlaceholder,
    Placeholder,
    PlaceholderActions,
    PlaceholderEvent,
    PlaceholderPhase,
    PlaceholderPolicy,
)
from malletrain.scavenger.machine.submission_backoff import SubmissionBackoff

_SILENT_SECONDS = 60.0
"""An agent reports within a second of its start, and again within a second when its connection is lost."""
_UNLISTED_SECONDS = 30.0
"""A placeholder that was just submitted may be missing in the scheduler's list for so long."""
_KEPT_EVENTS = 400
_GOLDEN_RATIO = (math.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it, modulo 1, are spread evenly however many there are."""


@dataclass(frozen=True)
class PlaceholderState:
    """All placeholders, and what is known about nodes that could have one.

    Attributes:
        placeholders: By identifier.
        avoided_until: Nodes that get no placeholder for now, and until when.
        node_failures: Failures in a row by node.
        idle_since: Held nodes without work, and since when.
        silent_since: Held nodes whose agent does not report, and since when.
        preempted_at: When the scheduler last took a node back.
        backoff: Whether submission is slowed down after failures.
        events: What happened last, for error messages.
    """

    placeholders: Mapping[str, Placeholder] = field(default_factory=dict)
    avoided_until: Mapping[str, float] = field(default_factory=dict)
    node_failures: Mapping[str, int] = field(default_factory=dict)
    idle_since: Mapping[str, float] = field(default_factory=dict)
    silent_since: Mapping[str, float] = field(default_factory=dict)
    preempted_at: float = -math.inf
    backoff: SubmissionBackoff = field(default_factory=SubmissionBackoff)
    events: tuple[PlaceholderEvent, ...] = ()

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that have a placeholder in any phase."""
        return frozenset(entry.node for entry in self.placeholders.values())

    @property
    def active_nodes(self) -> frozenset[str]:
        """Nodes that have a placeholder which waits or runs."""
        active = (PlaceholderPhase.PENDING, PlaceholderPhase.RUNNING)
        return frozenset(entry.node for entry in self.placeholders.values() if entry.phase in active)

    @property
    def running(self) -> frozenset[str]:
        """Nodes on which a placeholder runs."""
        return frozenset(entry.node for entry in self.in_phase(PlaceholderPhase.RUNNING))

    def in_phase(self, phase: PlaceholderPhase) -> list[Placeholder]:
        """The placeholders in a phase."""
        return [entry for entry in self.placeholders.values() if entry.phase is phase]

    def story(self, node: str) -> tuple[PlaceholderEvent, ...]:
        """What happened last on a node, oldest first."""
        return tuple(event for event in self.events if event.node == node)

    def may_be_on(self, identifier: str, node: str) -> bool:
        """Whether a placeholder may be that of a node's agent: none with its identifier is on another node."""
        entry = self.placeholders.get(identifier)
        return entry is None or entry.node in ("", node)

    # -- events ----------------------------------------------------------------------------------------------------

    def submitted(self, identifier: str, node: str, now: float, ends_at: float = math.inf) -> PlaceholderState:
        """A placeholder was submitted. Its agent may have reported before the scheduler returned its identifier.

        A scheduler that has forgotten a placeholder on another node may give its identifier again.

        Args:
            identifier: The scheduler's identifier.
            node: The node that it asks for.
            now: The present.
            ends_at: When its time limit ends at the earliest.
        """
        known = self.placeholders.get(identifier)
        if known is None or known.node != node:
            known = Placeholder(identifier, node, now)
        entry = replace(known, adopted=False, ends_at=ends_at)
        return self._with(entry, f"{identifier} submitted", now)

    def submission_failed(
        self, node: str, error: str, begun: float, now: float, policy: PlaceholderPolicy
    ) -> PlaceholderState:
        """The scheduler refused a placeholder, or did not answer; `begun` is when it was asked."""
        return self._failed(node, error, begun, now, policy)

    def missing(self, listed: Mapping[str, ListedPlaceholder], asked_at: float, policy: PlaceholderPolicy) -> list[str]:
        """Placeholders of ours that seem to have ended before their agents reported.

        Args:
            listed: What the scheduler listed, by identifier.
            asked_at: When it was asked. What was submitted later may be missing in its list.
            policy: With `starts_at_once`, pending placeholders are not listed and therefore not missing.
        """
        return [
            entry.id
            for entry in self.placeholders.values()
            if entry.id not in listed
            and not (entry.reported or entry.adopted)
            and entry.phase is not PlaceholderPhase.ENDING
            and entry.since <= asked_at
            and not (policy.starts_at_once and entry.phase is PlaceholderPhase.PENDING)
        ]

    def listed(self, listed: Mapping[str, ListedPlaceholder], asked_at: float, now: float) -> PlaceholderState:
        """Take over the scheduler's list of our placeholders. Known ones that are not listed have ended.

        Pending ones stay for a while all the same: they may have been submitted after the scheduler was asked. Those
        that are `missing` are to be reported by `ended_early` before.

        Args:
            listed: By identifier. Unknown ones are adopted: an earlier life of this service submitted them.
            asked_at: When the scheduler was asked.
            now: The present.
        """
        state = self
        entries: dict[str, Placeholder] = {}
        for identifier, placeholder in listed.items():
            known = self.placeholders.get(identifier)
            if known is None:
                entries[identifier] = Placeholder(
                    identifier, placeholder.node, now, placeholder.phase, adopted=True, blocked=placeholder.blocked
                )
                state = state._note(placeholder.node, f"{identifier} found, {placeholder.phase}", now)
            else:
                # Agents are heard before the list is read: it may be older than what is known.
                older = known.phase is PlaceholderPhase.ENDING or known.reported
                phase = known.phase if older and placeholder.phase is not PlaceholderPhase.ENDING else placeholder.phase
                entries[identifier] = replace(
                    known, node=placeholder.node or known.node, phase=phase, blocked=placeholder.blocked
                )
        young = {
            entry.id: entry
            for entry in self.in_phase(PlaceholderPhase.PENDING)
            if entry.id not in listed and asked_at - entry.since < _UNLISTED_SECONDS
        }
        for entry in self.placeholders.values():
            if entry.id not in listed and entry.id not in young:
                state = state._note(entry.node, f"{entry.id} has ended", now)
        return replace(state, placeholders=entries | young)

    def ended_early(
        self, identifier: str, end: EndedPlaceholder, now: float, policy: PlaceholderPolicy
    ) -> PlaceholderState:
        """One of the `missing` has ended. Nothing happens where its agent has reported meanwhile."""
        entry = self.placeholders.get(identifier)
        if entry is None or entry.reported:
            return self
        if not end.failed:
            # It did not fail: the scheduler has taken its node for a main job.
            return replace(self.ended(identifier, now), preempted_at=now)
        error = f"{identifier} ended before its agent had reported: {end.reason}"
        return self.ended(identifier, now)._failed(entry.node, error, entry.since, now, policy)

    def started(self, identifier: str, node: str, now: float) -> PlaceholderState:
        """The agent of a placeholder has reported."""
        known = self.placeholders.get(identifier)
        if known is None:
            known = Placeholder(identifier, node, now, adopted=True)
        if known.phase is PlaceholderPhase.ENDING or (known.reported and known.phase is PlaceholderPhase.RUNNING):
            return self
        entry = replace(known, node=node, phase=PlaceholderPhase.RUNNING, reported=True, blocked="")
        # A start shows that this node works, and that the scheduler starts placeholders at all.
        failures = {name: count for name, count in self.node_failures.items() if name != node}
        state = replace(self, node_failures=failures, backoff=self.backoff.succeeded(known.since))
        return state._with(entry, f"{identifier}: agent reported", now)

    def given_back(self, identifier: str, now: float) -> PlaceholderState:
        """The agent of a placeholder leaves because we have told it to."""
        known = self.placeholders.get(identifier)
        if known is None or known.phase is PlaceholderPhase.ENDING:
            return self
        return self.cancelled(identifier, now, "node given back")

    def preempted(self, identifier: str, now: float, policy: PlaceholderPolicy) -> PlaceholderState:
        """The agent of a placeholder leaves: the scheduler takes the node back, or the time limit is about to end."""
        known = self.placeholders.get(identifier)
        if known is None or known.phase is PlaceholderPhase.ENDING:
            return self
        # Its own time limit says nothing of the main queue: there is no need to hold back, as after a preemption.
        if now >= known.ends_at - policy.margin_seconds:
            return self.cancelled(identifier, now, "time limit")
        return replace(self.cancelled(identifier, now, "node wanted back"), preempted_at=now)

    def cancelled(self, identifier: str, now: float, why: str = "cancelled") -> PlaceholderState:
        """A placeholder is being ended."""
        entry = replace(self.placeholders[identifier], phase=PlaceholderPhase.ENDING, ending_since=now)
        return self._with(entry, f"{identifier}: {why}", now)

    def ended(self, identifier: str, now: float) -> PlaceholderState:
        """A placeholder has ended."""
        entry = self.placeholders.get(identifier)
        if entry is None:
            return self
        others = {key: other for key, other in self.placeholders.items() if key != identifier}
        return replace(self, placeholders=others)._note(entry.node, f"{identifier} has ended", now)

    def observed(self, idle: Set[str], silent: Set[str], now: float) -> PlaceholderState:
        """Take over which held nodes have no work, and of which no agent is connected."""
        return replace(
            self,
            idle_since={node: self.idle_since.get(node, now) for node in idle},
            silent_since={node: self.silent_since.get(node, now) for node in silent},
        )

    def moved(self, seconds: float) -> PlaceholderState:
        """The wall clock was set by so many seconds: as much of each limit is left as before."""

        def later(times: Mapping[str, float]) -> dict[str, float]:
            return {node: time + seconds for node, time in times.items()}

        return replace(
            self,
            placeholders={identifier: entry.moved(seconds) for identifier, entry in self.placeholders.items()},
            avoided_until=later(self.avoided_until),
            idle_since=later(self.idle_since),
            silent_since=later(self.silent_since),
            preempted_at=self.preempted_at + seconds,
            backoff=self.backoff.moved(seconds),
        )

    # -- decisions -------------------------------------------------------------------------------------------------

    def decide(
        self,
        usable: Mapping[str, float],
        wanted: int,
        policy: PlaceholderPolicy,
        now: float,
        unwanted: Set[str] = frozenset(),
        worth: NodeWorth | None = None,
    ) -> tuple[PlaceholderState, PlaceholderActions]:
        """What to submit and what to cancel.

        Args:
            usable: Idle nodes that may be held, with the seconds for which they are expected to stay idle.
            wanted: How many nodes there is work for.
            policy: When to do what.
            now: The present.
            unwanted: Nodes that are to be given back. None of them is usable.
            worth: Which nodes there is work for; None: any. Nodes without work do not count among the wanted ones.

        Returns:
            The state in which the cancelled ones are marked, and what is to be done.
        """
        still_avoided = {node: until for node, until in self.avoided_until.items() if until > now}
        useless = frozenset[str]()
        if worth is not None:
            # Nodes on which work runs first: there is work for them.
            useless = worth.useless(sorted(self.active_nodes, key=lambda node: (node in self.idle_since, node)))
        wanted += len(useless)
        state, cancel = replace(self, avoided_until=still_avoided)._decide_cancellations(
            usable, wanted, policy, now, unwanted, useless
        )
        free = [
            (node, seconds)
            for node, seconds in usable.items()
            if seconds >= policy.shortest_seconds and node not in state.nodes and node not in state.avoided_until
        ]
        # Nodes without failures first, of these the ones that stay longest; equal ones keep their order.
        free.sort(key=lambda entry: (state.node_failures.get(entry[0], 0), -entry[1]))
        if worth is not None:
            useful = worth.useful(sorted(state.active_nodes), [node for node, _ in free])
            free = [entry for entry in free if entry[0] in useful]
        room = max(0, state.room(wanted, policy, now))
        submit = tuple(
            (node, min(seconds, _time_limit(len(state.placeholders) + index, policy)))
            for index, (node, seconds) in enumerate(free[:room])
        )
        if submit:
            state = replace(state, backoff=state.backoff.probed(now, policy.backoff))
        return state, PlaceholderActions(submit, tuple(entry.id for entry in cancel))

    def room(self, wanted: int, policy: PlaceholderPolicy, now: float) -> int:
        """How many placeholders may be submitted; 0 or less: none."""
        # The main queue has just wanted a node back: it may want more, and each that is held then delays it.
        if now - self.preempted_at < policy.calm_seconds:
            return 0
        pending = len(self.in_phase(PlaceholderPhase.PENDING))
        active = pending + len(self.in_phase(PlaceholderPhase.RUNNING))
        room = min(wanted - active, policy.most_pending - pending)
        if not self.backoff.active:
            return room
        return min(room, 1) if self.backoff.is_due(now, policy.backoff) and not self.probes() else 0

    def _decide_cancellations(
        self,
        usable: Mapping[str, float],
        wanted: int,
        policy: PlaceholderPolicy,
        now: float,
        unwanted: Set[str],
        useless: Set[str],
    ) -> tuple[PlaceholderState, list[Placeholder]]:
        phases = (PlaceholderPhase.PENDING, PlaceholderPhase.RUNNING)
        barred = [entry for phase in phases for entry in self.in_phase(phase) if entry.node in unwanted]
        state = self
        for entry in barred:
            state = state.given_back(entry.id, now)
        state, others = state._decide_others(usable, wanted, policy, now, useless)
        return state, [*barred, *others]

    def _decide_others(
        self, usable: Mapping[str, float], wanted: int, policy: PlaceholderPolicy, now: float, useless: Set[str]
    ) -> tuple[PlaceholderState, list[Placeholder]]:
        late = [entry for entry in self.in_phase(PlaceholderPhase.PENDING) if _is_late(entry, policy, now)]
        silent = self._without_agent(now)
        surplus = [entry for entry in self._surplus(wanted, policy, now, useless) if entry not in silent]
        overdue = [
            entry
            for entry in self.in_phase(PlaceholderPhase.ENDING)
            if now - entry.ending_since >= policy.patience_seconds
        ]
        state = self
        for entry in late:
            state = state._not_started(entry, policy, now, still_idle=entry.node in usable)
        for entry in silent:
            # One whose agent was there has started well. It is ended all the same, but held against no node.
            if not (entry.reported or entry.adopted):
                error = f"{entry.id} runs, but its agent has not reported within {_SILENT_SECONDS:g} s"
                state = state._failed(entry.node, error, entry.since, now, policy)
        for why, entries in (("late", late), ("silent", silent), ("surplus", surplus), ("overdue", overdue)):
            for entry in entries:
                state = state.cancelled(entry.id, now, f"cancelled, {why}")
        return state, [*late, *silent, *surplus, *overdue]

    def _not_started(
        self, entry: Placeholder, policy: PlaceholderPolicy, now: float, *, still_idle: bool
    ) -> PlaceholderState:
        """A placeholder has not started in time: it has failed, or its node was taken, which is nobody's fault."""
        if entry.blocked and not entry.adopted:
            return self._failed(entry.node, f"{entry.id} does not start: {entry.blocked}", entry.since, now, policy)
        if policy.starts_at_once and still_idle:
            error = f"{entry.id}: it has not reported within {policy.patience_seconds:g} s"
            return self._failed(entry.node, error, entry.since, now, policy)
        return self._avoid(entry.node, now + policy.refusal_seconds)

    def _without_agent(self, now: float) -> list[Placeholder]:
        running = self.in_phase(PlaceholderPhase.RUNNING)
        return [entry for entry in running if now - self.silent_since.get(entry.node, now) >= _SILENT_SECONDS]

    def _surplus(self, wanted: int, policy: PlaceholderPolicy, now: float, useless: Set[str]) -> list[Placeholder]:
        """More than are wanted, or of no use to any job, and without work for a while. The newest come first."""
        running = sorted(self.in_phase(PlaceholderPhase.RUNNING), key=lambda entry: -entry.since)
        idle = [
            entry
            for entry in running
            if entry.node in self.idle_since and now - self.idle_since[entry.node] >= policy.surplus_seconds
        ]
        useful = [entry for entry in idle if entry.node not in useless]
        return [entry for entry in idle if entry.node in useless] + useful[: max(0, len(running) - wanted)]

    def probes(self) -> list[Placeholder]:
        """Placeholders that were submitted after the last failure and of which it is not known whether they succeed."""
        return [
            entry
            for entry in self.placeholders.values()
            if entry.phase is not PlaceholderPhase.ENDING
            and not (entry.reported or entry.adopted)
            and entry.since > self.backoff.failed_at
        ]

    def _failed(
        self, node: str, error: str, submitted_at: float, now: float, policy: PlaceholderPolicy
    ) -> PlaceholderState:
        failures = self.node_failures.get(node, 0) + 1
        longest = max(policy.refusal_seconds, policy.backoff.backoff_max_seconds)
        avoided = pause_after(failures, policy.refusal_seconds, longest)
        state = replace(
            self,
            node_failures={**self.node_failures, node: failures},
            backoff=self.backoff.failed(node, error, submitted_at, now, policy.backoff),
        )
        return state._avoid(node, now + avoided)._note(node, f"failed: {error}", now)

    def _avoid(self, node: str, until: float) -> PlaceholderState:
        return replace(self, avoided_until={**self.avoided_until, node: until})

    def _with(self, entry: Placeholder, what: str, now: float) -> PlaceholderState:
        return replace(self, placeholders={**self.placeholders, entry.id: entry})._note(entry.node, what, now)

    def _note(self, node: str, what: str, now: float) -> PlaceholderState:
        return replace(self, events=(*self.events, PlaceholderEvent(now, node, what))[-_KEPT_EVENTS:])


def _time_limit(number: int, policy: PlaceholderPolicy) -> float:
    """Time limit in seconds of the placeholder with this number among those that there are, counted from 0.

    Limits are spread between half of the longest and the longest, so that jobs do not lose all their nodes at once.
    """
    spread = 1.0 - 0.5 * math.fmod(number * _GOLDEN_RATIO, 1.0)
    return min(policy.longest_seconds, max(policy.shortest_seconds, policy.longest_seconds * spread))


def _is_late(entry: Placeholder, policy: PlaceholderPolicy, now: float) -> bool:
    return now - entry.since >= policy.patience_seconds
