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
        """Start an agent that outlives the connection, without a time limit. See `BatchClient`."""
        del seconds, facts
        certificate = Input(f"{await self.agent.certificate_line(node)}\n")
        await self.run([*self.ssh, node, self._start_line(node)], self.timeout_seconds, certificate)
        return agent_placeholder_id(node)

    def _start_line(self, node: str) -> str:
        """What the shell on the node does: it reads the certificate and hands it to the agent by a pipe.

        It ends once the pipe holds the certificate and the agent's session has begun, not before: the end of the
        connection, or of the command that stands in for ssh, may be that of everything in the shell's session.
        """
        agent, log = shlex.join(self.agent.on(node, "stdin")), shlex.quote(self.log)
        give = "{ printf '%s\\n' \"$line\"; echo given >&3; }"
        start = f"setsid sh -c 'echo begun; exec \"$@\" >&2' sh {agent} 2>>{log} 3>&-"
        return f"IFS= read -r line && {{ {give} | {start} & }} 3>&1 | {{ read -r one && read -r other; }}"

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
