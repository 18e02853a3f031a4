"""Agents started by ssh on nodes that nothing holds, where an administrator allows it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.scavenger.acquisition.batch import AgentCommand, Found
from malletrain.scavenger.acquisition.desk import AgentDesk, name_of_agent
from malletrain.scavenger.acquisition.ledger import Phase
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts
from malletrain.scavenger.sources.schedulers.commands import RunCommand


@dataclass(frozen=True)
class SshStart:
    """An agent stands for a placeholder: there is nothing else to find or to cancel. See `Batch`.

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        desk: Where agents report.
        ssh: Command that runs another one on a node; the node and a shell's command line follow.
        log: Where agents write to, on their node.
        timeout_seconds: For each command.
    """

    run: RunCommand
    agent: AgentCommand
    desk: AgentDesk
    ssh: tuple[str, ...]
    log: str = "/dev/null"
    timeout_seconds: float = 10.0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """Start an agent that outlives the connection; see `Batch`. There is no time limit."""
        del seconds, facts
        log = shlex.quote(self.log)
        line = f"setsid {shlex.join(self.agent.on(node))} </dev/null >>{log} 2>&1 &"
        await self.run([*self.ssh, node, line], self.timeout_seconds)
        return name_of_agent(node)

    async def find(self) -> Found:
        """All whose agents are there."""
        entries = [*self.desk.present.values(), *self.desk.leaving]
        return {entry.placeholder: (entry.node, Phase.RUNNING) for entry in entries}

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """Have agents leave. One that is still starting is taken over when it reports, as after a restart."""
        self.desk.dismiss(entry.node for entry in list(self.desk.present.values()) if entry.placeholder in identifiers)
