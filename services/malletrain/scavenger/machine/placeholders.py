"""Placeholders, and when they are submitted and cancelled. Pure.

A placeholder is a batch job of one node and low priority. The scheduler takes a node back by ending its placeholder; no
other work ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from malletrain.scavenger.machine.submission_backoff import BackoffPolicy


class PlaceholderPhase(StrEnum):
    """How far a placeholder is: it waits in the queue, its job runs, or it is being ended."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"


@dataclass(frozen=True)
class ListedPlaceholder:
    """What the scheduler says of a placeholder that has not ended.

    Attributes:
        node: The node that it asks for or runs on; empty where the scheduler does not say.
        phase: Where it stands.
        blocked: Why the scheduler does not start it, in the scheduler's words; empty where it only waits for its node.
    """

    node: str
    phase: PlaceholderPhase
    blocked: str = ""


@dataclass(frozen=True)
class EndedPlaceholder:
    """How a placeholder has ended whose agent never reported.

    Attributes:
        reason: What the scheduler says.
        failed: False where the scheduler took the node back.
    """

    reason: str
    failed: bool = True


@dataclass(frozen=True)
class Placeholder:
    """One of our batch jobs that hold nodes. Times are seconds since the epoch.

    Attributes:
        id: The scheduler's identifier.
        node: The node that it asks for or runs on.
        since: When it was submitted, or first seen if it is adopted.
        phase: Where it stands.
        ending_since: When it was last cancelled, or its node was wanted back; infinite before.
        ends_at: When its time limit ends at the earliest; infinite where that is not known.
        reported: Whether its agent has ever reported.
        adopted: Whether it was submitted before this service started, as far as is known.
        blocked: See `ListedPlaceholder`.
    """

    id: str
    node: str
    since: float
    phase: PlaceholderPhase = PlaceholderPhase.PENDING
    ending_since: float = math.inf
    ends_at: float = math.inf
    reported: bool = False
    adopted: bool = False
    blocked: str = ""

    def moved(self, seconds: float) -> Placeholder:
        """The wall clock was set by so many seconds. Time limits last as long as before."""
        return replace(
            self,
            since=self.since + seconds,
            ending_since=self.ending_since + seconds,
            ends_at=self.ends_at + seconds,
        )


@dataclass(frozen=True)
class PlaceholderPolicy:
    """When placeholders are submitted and cancelled. Most fields are settings `hold.*`; times in seconds.

    Attributes:
        shortest_seconds: A node that is expected to be idle for less is not held.
        longest_seconds: The longest time limit of a placeholder.
        patience_seconds: A placeholder that has not started by then is cancelled: its node was taken. One that has not
            ended so long after it was cancelled is cancelled again, as the scheduler may not have got the message.
        refusal_seconds: How long a node gets no placeholder after one has not started there. Doubles with each failure
            in a row on the same node, up to the longest back-off.
        surplus_seconds: How long a node may be held without work when fewer nodes are wanted.
        most_pending: Most placeholders that wait to start: pending jobs make the scheduler's backfill slower.
        calm_seconds: How long nothing is submitted after the scheduler took a node back. While it gathers nodes for one
            job, those that it has already chosen look idle.
        margin_seconds: How long before the time limit of its placeholder an agent leaves.
        backoff: How long to wait after placeholders that fail.
        starts_at_once: Placeholders do not wait in a queue (agents started over ssh). One that has not started within
            `patience_seconds` although its node is still idle has failed.
    """

    shortest_seconds: float = 120.0
    longest_seconds: float = 4 * 3600.0
    patience_seconds: float = 15.0
    refusal_seconds: float = 30.0
    surplus_seconds: float = 60.0
    most_pending: int = 64
    calm_seconds: float = 15.0
    margin_seconds: float = 15.0
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)
    starts_at_once: bool = False


@dataclass(frozen=True)
class PlaceholderActions:
    """Which placeholders are to be submitted and cancelled.

    Attributes:
        submit: Node and time limit in seconds of each placeholder to submit.
        cancel: Identifiers of the placeholders to cancel.
    """

    submit: tuple[tuple[str, float], ...] = ()
    cancel: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlaceholderEvent:
    """Something that happened to a placeholder, for error messages.

    Attributes:
        time: When, in seconds since the epoch.
        node: Node of the placeholder.
        what: What happened.
    """

    time: float
    node: str
    what: str


@dataclass(frozen=True)
class LostPlaceholders:
    """What a list of the scheduler says of nodes with agents, each of which must leave.

    Attributes:
        reasons: By node: what has become of its agent's placeholder.
        pending: Of these, placeholders that the scheduler still means to start: by node.
        doubted: Nodes whose agent's placeholder waits to start, by this list alone.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, str] = field(default_factory=dict)
    doubted: Mapping[str, str] = field(default_factory=dict)


def find_unlisted(agents: Mapping[str, str], listed: Mapping[str, ListedPlaceholder]) -> list[str]:
    """Placeholders of agents that the scheduler does not list: it is to be asked for the end of each.

    Args:
        agents: Placeholder of each agent, by node. They had reported when the scheduler was asked.
        listed: What it listed, by identifier.
    """
    return [identifier for identifier in agents.values() if identifier not in listed]


def find_lost(
    agents: Mapping[str, str],
    listed: Mapping[str, ListedPlaceholder],
    ends: Mapping[str, EndedPlaceholder],
    doubted: Mapping[str, str],
) -> LostPlaceholders:
    """Which agents have no placeholder any more: the scheduler has forgotten it, or shows it as not yet started.

    A scheduler that is killed before it has stored a change knows its jobs as they were before. It may then give the
    nodes on which our agents are to a main job, and nobody tells the agents.

    Args:
        agents: As for `find_unlisted`.
        listed: As for `find_unlisted`.
        ends: How placeholders have ended that are not listed. One that is in neither has another state.
        doubted: Those of the list before. Two lists must agree: a scheduler may start a job before it says so.
    """
    reasons: dict[str, str] = {}
    pending: dict[str, str] = {}
    doubts: dict[str, str] = {}
    for node, identifier in agents.items():
        placeholder, end = listed.get(identifier), ends.get(identifier)
        if placeholder is None:
            if end is not None:
                reasons[node] = end.reason
        elif placeholder.node not in ("", node):
            reasons[node] = f"the scheduler has forgotten it, and given its identifier to one on {placeholder.node}"
        elif placeholder.phase is PlaceholderPhase.PENDING:
            doubts[node] = identifier
            if doubted.get(node) == identifier:
                reasons[node] = "the scheduler has forgotten that it runs"
                pending[node] = identifier
    return LostPlaceholders(reasons, pending, doubts)
