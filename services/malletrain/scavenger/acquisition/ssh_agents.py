"""Agents that are started over ssh, on nodes that no placeholder holds, where an administrator allows it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.scavenger.acquisition.agent_registry import AgentRegistry, agent_placeholder_id
from malletrain.scavenger.acquisition.batch_client import AgentCommand
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase
from malletrain.scavenger.sources.schedulers.commands import Input, RunCommand


@dataclass(frozen=True)
class SshAgentStarter:
    """A `BatchClient` without a scheduler: each agent counts as its own placeholder.

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        registry: Where agents report.
        ssh: Command that runs another one on a node. The node and a command line of the shell are appended.
        log: File on the node to which the agent writes.
        timeout_seconds: Time limit of each command.
    """

    run: RunCommand
    agent: AgentCommand
    registry: AgentRegistry
    ssh: tuple[str, ...]
    log: str = "/dev/null"
    timeout_seconds: float = 10.0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """Start an agent that outlives the connection, without a time limit. See `BatchClient`.

        The shell on the node reads the certificate before it starts the agent, and hands it on by a pipe.
        """
        del seconds, facts
        agent, log = shlex.join(self.agent.on(node, "stdin")), shlex.quote(self.log)
        line = f"IFS= read -r line && {{ printf '%s\\n' \"$line\" | setsid {agent} >>{log} 2>&1 & }}"
        certificate = Input(f"{await self.agent.certificate_line(node)}\n")
        await self.run([*self.ssh, node, line], self.timeout_seconds, certificate)
        return agent_placeholder_id(node)

    async def find(self) -> Mapping[str, ListedPlaceholder]:
        """All agents that have reported."""
        agents = [*self.registry.present.values(), *self.registry.leaving]
        return {agent.placeholder: ListedPlaceholder(agent.node, PlaceholderPhase.RUNNING) for agent in agents}

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        """Nothing is known of agents that never reported."""
        del identifiers
        return {}

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """Tell agents to leave. One that has not reported yet is adopted when it does, as after a restart."""
        present = list(self.registry.present.values())
        self.registry.ask_to_leave(agent.node for agent in present if agent.placeholder in identifiers)
