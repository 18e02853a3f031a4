"""What is asked of a batch scheduler to hold nodes, and what a placeholder runs."""

from __future__ import annotations

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
        """All placeholders that have not ended, by identifier.

        Raises:
            SourceError: the scheduler does not answer.
        """

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        """How placeholders have ended that are no longer listed. Those that have not ended are left out.

        Raises:
            SourceError: the scheduler does not answer.
        """

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """Cancel placeholders. Those that have ended do no harm.

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
        marks: Folder on the nodes in which a Prolog marks nodes that were just taken; empty: there is no such Prolog.
    """

    python: str
    head: str
    certificate: str
    listen: str
    grace_seconds: float
    marks: str = ""

    def on(self, node: str) -> list[str]:
        """The command for a node."""
        return [
            *(self.python, "-P", "-m", "malletrain.agent", "--node", node, "--head", self.head),
            *("--certificate", self.certificate, "--listen", self.listen, "--grace", f"{self.grace_seconds:g}"),
            *(("--marks", self.marks) if self.marks else ()),
        ]
