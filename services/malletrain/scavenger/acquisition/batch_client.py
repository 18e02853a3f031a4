"""What is asked of a batch scheduler to hold nodes, and what a placeholder runs."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder

UNKNOWN_END = EndedPlaceholder("the scheduler no longer knows it")


class BatchClient(Protocol):
    """Submits, lists and cancels placeholders."""

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """Submit a placeholder for a whole node.

        Args:
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
        issue: Makes the certificate of the agent of a node, in PEM; may raise SourceError.
        listen: Address on which agents serve supervisors.
        grace_seconds: How long workers may take to leave by themselves.
        installation: Identifier of our installation: the mark by which its placeholders and agents are known.
        margin_seconds: How long before the time limit of a placeholder its agent leaves.
        marks: Folder on the nodes in which a Prolog marks nodes that were just taken; empty: there is no such Prolog.
        standby_memory_mib: Largest share of memory of a standby process on a node; 0: none is kept.
        stage_out: How long checkpoints may be copied from a node after its workers have gone, in seconds, and how much
            of a user's, in MiB; 0 for either: none is.
        check: More options of the agent, by which it checks the node before it reports.
    """

    python: str
    head: str
    issue: Callable[[str], str] = field(repr=False)
    listen: str
    grace_seconds: float
    installation: str
    margin_seconds: float = 15.0
    marks: str = ""
    standby_memory_mib: int = 0
    stage_out: tuple[float, int] = (0.0, 0)
    check: tuple[str, ...] = ()

    async def certificate_line(self, node: str) -> str:
        """A certificate for an agent that is started on a node, in base64 and as one line. A secret.

        Raises:
            SourceError: none can be made.
        """
        return base64.b64encode((await asyncio.to_thread(self.issue, node)).encode("ascii")).decode("ascii")

    def on(self, node: str, source: str, limit_seconds: float = math.inf) -> list[str]:
        """The command for a node, which everybody may read.

        Args:
            source: Where the agent gets its certificate: `stdin` or `pbs-script`.
            limit_seconds: Time limit of the placeholder.
        """
        stay = max(0.0, limit_seconds - self.margin_seconds)
        return [
            *(self.python, "-P", "-m", "malletrain.agent", "--node", node, "--head", self.head),
            *("--certificate-from", source, "--listen", self.listen, "--grace", f"{self.grace_seconds:g}"),
            *("--installation", self.installation),
            *(("--stay", f"{stay:g}") if math.isfinite(stay) else ()),
            *(("--marks", self.marks) if self.marks else ()),
            *(("--standby-mib", f"{self.standby_memory_mib}") if self.standby_memory_mib else ()),
            *self._stage_out_options,
            *self.check,
        ]

    @property
    def _stage_out_options(self) -> tuple[str, ...]:
        seconds, mib = self.stage_out
        return ("--stage-out-seconds", f"{seconds:g}", "--stage-out-mib", f"{mib}") if seconds and mib else ()
