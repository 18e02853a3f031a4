"""Invariants of placeholders. Pure.

They hold after every event, whatever the scheduler does. Where one does not, the error tells what happened on the node.
Checked only where the setting `validate_state` is on; `malletrain debug replay` checks them all the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from malletrain.runtime.errors import InvariantError
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from malletrain.scavenger.machine.placeholders import (
    Placeholder,
    PlaceholderActions,
    PlaceholderPhase,
    PlaceholderPolicy,
)
from malletrain.scavenger.machine.submission_backoff import SubmissionBackoff


def validate_state(state: PlaceholderState) -> None:
    """Check all placeholders and the back-off.

    Placeholders of an earlier life of the service are exempt where the earlier life may have broken the rule.

    Raises:
        InvariantError: an invariant does not hold; names the node and tells its story.
    """
    for identifier, entry in state.placeholders.items():
        if entry.id != identifier:
            raise _broken_error(state, entry.node, f"placeholder {entry.id} is kept as {identifier}")
        _validate_phase(state, entry)
    submitted = [entry for entry in state.placeholders.values() if not entry.adopted]
    for node, count in Counter(entry.node for entry in submitted).items():
        if count > 1:
            raise _broken_error(state, node, f"{count} placeholders were submitted for one node")
    _validate_backoff(state)


def validate_actions(
    before: PlaceholderState,
    actions: PlaceholderActions,
    usable: Mapping[str, float],
    wanted: int,
    policy: PlaceholderPolicy,
    now: float,
) -> None:
    """Check a decision.

    Args:
        before: The state that it was made for.
        actions: The decision.
        usable: Idle nodes and for how many seconds they are expected to stay so.
        wanted: How many nodes there is work for.
        policy: When placeholders are submitted and cancelled.
        now: When the decision was made, in seconds since the epoch.

    Raises:
        InvariantError: an invariant does not hold; names the node and tells its story.
    """
    for identifier in actions.cancel:
        if identifier not in before.placeholders:
            raise _broken_error(before, "", f"{identifier} is cancelled and not known")
    nodes = [node for node, _ in actions.submit]
    for node, seconds in actions.submit:
        if node in before.nodes or nodes.count(node) > 1:
            raise _broken_error(before, node, "a second placeholder is submitted for one node")
        if before.avoided_until.get(node, -math.inf) > now:
            raise _broken_error(before, node, "a placeholder is submitted for a node that is avoided")
        if not policy.shortest_seconds <= usable.get(node, -math.inf):
            raise _broken_error(before, node, "a placeholder is submitted for a node that is not idle for long enough")
        if seconds > min(policy.longest_seconds, usable[node]):
            raise _broken_error(before, node, f"a time limit of {seconds:g} s is too long")
    if actions.submit:
        _validate_number(before, actions, wanted, policy, now)


def validate_held(
    idle: Mapping[str, float], agents: Mapping[str, str], placeholders: Mapping[str, str], state: PlaceholderState
) -> None:
    """Check the nodes that have joined.

    Args:
        idle: Nodes that are told as idle.
        agents: HOST:PORT of the agents that are told.
        placeholders: Identifier of the placeholder of each agent that is present, by node.
        state: The placeholders.

    Raises:
        InvariantError: an invariant does not hold; names the node and tells its story.
    """
    for node in idle:
        if not agents.get(node):
            raise _broken_error(state, node, "it has joined, but has no agent")
        entry = state.placeholders.get(placeholders.get(node, ""))
        if entry is None or entry.node != node:
            raise _broken_error(state, node, "it has joined, but the placeholder of its agent is not known")


def _validate_phase(state: PlaceholderState, entry: Placeholder) -> None:
    if entry.phase is not PlaceholderPhase.ENDING and entry.ending_since < math.inf:
        raise _broken_error(state, entry.node, f"{entry.id} was told to end, and is {entry.phase}")
    if entry.phase is PlaceholderPhase.PENDING and entry.reported:
        raise _broken_error(state, entry.node, f"the agent of {entry.id} has reported, and yet it is {entry.phase}")


def _validate_backoff(state: PlaceholderState) -> None:
    backoff = state.backoff
    if backoff.active:
        consistent = bool(backoff.error) and math.isfinite(backoff.failed_at) and backoff.retry_at >= backoff.failed_at
        if not consistent:
            raise _broken_error(state, backoff.node, f"the back-off contradicts itself: {backoff}")
        if len(state.probes()) > 1:
            names = ", ".join(entry.id for entry in state.probes())
            raise _broken_error(state, backoff.node, f"more than one probe after a failure: {names}")
    elif backoff != SubmissionBackoff():
        raise _broken_error(state, backoff.node, f"the back-off contradicts itself: {backoff}")
    for node, failures in state.node_failures.items():
        if failures < 1:
            raise _broken_error(state, node, f"{failures} failures are counted")


def _validate_number(
    before: PlaceholderState, actions: PlaceholderActions, wanted: int, policy: PlaceholderPolicy, now: float
) -> None:
    count = len(actions.submit)
    node = actions.submit[0][0]
    if now - before.preempted_at < policy.calm_seconds:
        raise _broken_error(before, node, "a placeholder is submitted just after the scheduler took a node back")
    remaining = [entry for entry in before.placeholders.values() if entry.id not in actions.cancel]
    pending = sum(entry.phase is PlaceholderPhase.PENDING for entry in remaining)
    running = sum(entry.phase is PlaceholderPhase.RUNNING for entry in remaining)
    if pending + running + count > wanted:
        raise _broken_error(
            before, node, f"{pending + running + count} placeholders are held or wait, {wanted} are wanted"
        )
    if pending + count > policy.most_pending:
        raise _broken_error(before, node, f"{pending + count} placeholders wait, at most {policy.most_pending} may")
    if before.backoff.active and (count > 1 or not before.backoff.is_due(now, policy.backoff)):
        raise _broken_error(before, node, f"{count} placeholders are submitted during the back-off {before.backoff}")


def _broken_error(state: PlaceholderState, node: str, what: str) -> InvariantError:
    events = state.story(node) if node else state.events
    story = "".join(f"\n  {event.time:.3f} {event.what}" for event in events) or "\n  nothing is known"
    return InvariantError(f"node {node or '?'}: {what}. Its story:{story}")
