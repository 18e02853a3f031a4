"""Whether an agent may introduce itself as it does: what its certificate says, and who was there before. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.scavenger.machine.node_speeds import NodeSpeed
from malletrain.tls.names import PeerNode, node_name


@dataclass(frozen=True)
class RegisteredAgent:
    """An agent that has reported.

    Attributes:
        node: Its node.
        address: HOST:PORT on which it serves supervisors.
        placeholder: The batch job that it runs in.
        workers: How many workers it has.
        version: Version of MalleTrain that it runs; empty: 0.1.0 or earlier.
        certificate: What its certificate says of its node; None: it is the one that agents of 0.1 share.
        unfit: Why no worker must start on its node; empty: nothing is known against it.
        speed: How fast its node is; None: it has not been measured.
    """

    node: str
    address: str
    placeholder: str
    workers: int = 0
    version: str = ""
    certificate: PeerNode | None = None
    unfit: str = ""
    speed: NodeSpeed | None = None

    @property
    def name(self) -> str:
        """DNS name that only the certificate of this node's agent has; empty if it has none of its own."""
        return "" if self.certificate is None else self.certificate.name


def wrong_clock(told: float, now: float, most_seconds: float) -> str:
    """Why no worker must start on a node by its clock; empty: it is right.

    Args:
        told: What the node's clock has said, in seconds since the epoch.
        now: What ours says.
        most_seconds: By how much they may differ, the way to us included.
    """
    ahead = told - now
    if abs(ahead) <= most_seconds:
        return ""
    return f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the head node's"


@dataclass(frozen=True)
class NodeHistory:
    """What has been seen of a node's agents.

    Attributes:
        newest: Highest number of a placeholder whose agent has reported; 0: none has.
        has_own: Whether an agent has reported with a certificate of the node's own.
    """

    newest: int = 0
    has_own: bool = False

    def after(self, agent: RegisteredAgent) -> NodeHistory:
        """The history once this agent has reported."""
        shown = agent.certificate
        if shown is None:
            return self
        return NodeHistory(max(self.newest, shown.placeholder or 0), has_own=True)


UNSEEN = NodeHistory()
"""Of a node no agent has reported."""


def refusal_of(
    agent: RegisteredAgent,
    history: NodeHistory,
    present: Iterable[RegisteredAgent],
    *,
    accepts_shared: bool,
    is_expected: bool = True,
) -> str:
    """Why an agent is refused; empty: it is admitted.

    Args:
        agent: As it introduces itself.
        history: Of the node that it names.
        present: The agents that there are.
        accepts_shared: Whether the certificate that agents of 0.1 share is accepted.
        is_expected: Whether there may be a placeholder on the node that it names.
    """
    shown, others = agent.certificate, list(present)
    if shown is None:
        if not accepts_shared:
            return "the certificate names no node, as that which all agents of version 0.1 shared"
        if history.has_own:
            return f"the certificate names no node, and the agents of {agent.node} have one of their own"
    elif shown.name != node_name(agent.node):
        return f"the certificate is that of another node than {agent.node}"
    elif shown.placeholder is None:
        if any(other.node == agent.node and _number(other) for other in others):
            return f"the agent of a placeholder is on {agent.node}, and the certificate is of none"
    elif shown.placeholder < history.newest:
        return f"the certificate is that of an earlier placeholder on {agent.node}"
    elif not is_expected:
        return f"the certificate is that of a placeholder, and none is on {agent.node}"
    if any(other.node != agent.node and other.placeholder == agent.placeholder for other in others):
        return f"placeholder {agent.placeholder!r} is that of another node's agent"
    return ""


def _number(agent: RegisteredAgent) -> int:
    return 0 if agent.certificate is None else agent.certificate.placeholder or 0
