"""Agents whose placeholders the scheduler has forgotten, or shows as not yet started. Pure.

A scheduler that is killed before it has stored a change knows its jobs as they were before. It may then give the nodes
on which our agents are to a main job, and nobody tells the agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase


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


def unlisted(agents: Mapping[str, str], listed: Mapping[str, ListedPlaceholder]) -> list[str]:
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
    """Which agents have no placeholder any more.

    Args:
        agents: As for `unlisted`.
        listed: As for `unlisted`.
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
