"""What is asked of a batch scheduler to hold nodes, and what a placeholder runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from malletrain.scavenger.acquisition.placeholders import EndedPlaceholder, ListedPlaceholder
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts

UNKNOWN_END = EndedPlaceholder("the scheduler no longer knows it")


class BatchClient(Protocol):
    """Submits, lists and cancels placeholders."""

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """Submit a placeholder for a whole node.

        Args:
            node: The node.
            seconds: Time limit.
            facts: What the node has, all of which the placeholder asks for.

        Returns:
            The scheduler's identifier.

        Raises:
            SourceError: the scheduler refuses it or does not answer; carries the scheduler's message.
        """

    async def find(self) -> Mapping[str, ListedPlaceholder]:
        """All placeholders that have not ended, by identifier: jobs of our user, in our queue, with our name and mark.

        A job of somebody else, or of another installation, is never among them, whatever it is called.

        Raises:
            SourceError: the scheduler does not answer.
        """

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        """How placeholders have ended that are no longer listed. Those that have not ended are left out.

        Raises:
            SourceError: the scheduler does not answer.
        """

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """Cancel placeholders, after asking the scheduler which of them are ours; others are left alone.

        Those that have ended do no harm.

        Raises:
            SourceError: the scheduler does not answer.
        """


@dataclass(frozen=True)
class AgentCommand:
    """How an agent is started on a node.

    Attributes:
        python: Interpreter of the training environment, as the nodes see it.
        head: HOST:PORT on which the Scavenger listens for agents, as the nodes see it.
        certificate: File with the agents' certificate, as the nodes see it.
        listen: Address on which agents serve supervisors.
        grace_seconds: How long workers may take to leave by themselves.
        installation: Identifier of our installation: the mark by which its placeholders and agents are known.
        margin_seconds: How long before the time limit of a placeholder its agent leaves.
        marks: Folder on the nodes in which a Prolog marks nodes that were just taken; empty: there is no such Prolog.
        standby_memory_mib: Largest share of memory of a standby process on a node; 0: none is kept.
    """

    python: str
    head: str
    certificate: str
    listen: str
    grace_seconds: float
    installation: str
    margin_seconds: float = 15.0
    marks: str = ""
    standby_memory_mib: int = 0

    def on(self, node: str, limit_seconds: float = math.inf) -> list[str]:
        """The command for a node, in a placeholder with this time limit."""
        stay = max(0.0, limit_seconds - self.margin_seconds)
        return [
            *(self.python, "-P", "-m", "malletrain.agent", "--node", node, "--head", self.head),
            *("--certificate", self.certificate, "--listen", self.listen, "--grace", f"{self.grace_seconds:g}"),
            *("--installation", self.installation),
            *(("--stay", f"{stay:g}") if math.isfinite(stay) else ()),
            *(("--marks", self.marks) if self.marks else ()),
            *(("--standby-mib", f"{self.standby_memory_mib}") if self.standby_memory_mib else ()),
        ]
