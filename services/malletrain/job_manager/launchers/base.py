"""What a launcher does for JobManager."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from malletrain.job_manager.jobs import Spec
from malletrain.job_manager.stimuli import SupervisorEnded, SupervisorSeen


class LaunchError(Exception):
    """A job's supervisor can't be started; the message is for people."""


class ProcessesLeftError(Exception):
    """Processes were killed and have not gone yet (they hang in the kernel, say)."""


@dataclass(frozen=True)
class LaunchOrder:
    """What a supervisor is started with.

    Attributes:
        job_id: Job identifier.
        incarnation: Counts the job's supervisors.
        spec: What was submitted.
        sequence: Of the command that the first nodes are.
        nodes: The first nodes.
    """

    job_id: str
    incarnation: int
    spec: Spec
    sequence: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """What a launcher must know of a node.

    Attributes:
        agent: HOST:PORT on which its agent serves; empty where the node is this machine.
        gpus: How many it has.
    """

    agent: str = ""
    gpus: int = 0


class Launcher(Protocol):
    """Owns supervisors: one process per job that outlives JobManager.

    Every method may be called again. Those that end processes raise ProcessesLeftError when some do not go.
    """

    def know_hosts(self, hosts: Mapping[str, Host]) -> None:
        """Take over what is known of nodes, by name; no supervisor is started before the first call."""

    async def start(self, job_id: str, incarnation: int, order: Callable[[], LaunchOrder | None]) -> None:
        """Make sure that this incarnation runs: adopt it where it does, else start it, once.

        Args:
            job_id: Job identifier.
            incarnation: Which of its supervisors.
            order: Asked at the last moment; None when the job shall not start any more.

        Raises:
            LaunchError: it can't be started.
        """

    def watch(self, job_id: str, incarnation: int) -> AsyncIterator[SupervisorSeen]:
        """The supervisor's state, whenever it changes; ends when the supervisor is gone."""

    async def collect(self, job_id: str, incarnation: int) -> SupervisorEnded:
        """End whatever is left of the job, and tell how its supervisor ended."""

    async def set_hosts(
        self, job_id: str, incarnation: int, sequence: int, nodes: tuple[str, ...]
    ) -> SupervisorSeen | None:
        """Command nodes; None when the supervisor can't be reached now."""

    async def release(self, job_id: str, incarnation: int, nodes: tuple[str, ...], grace_seconds: float) -> None:
        """End the job's processes on nodes; none is left when this returns. Costs the whole job where it must."""

    async def stop(self, job_id: str, incarnation: int, grace_seconds: float) -> None:
        """End the job's processes and its supervisor: asked first, killed at the end of the grace."""

    def is_done(self, job_id: str) -> bool:
        """Whether the trainer has said that it is done."""

    async def sweep_strays(self, supervised: Iterable[str]) -> int:
        """End every process of jobs that are not among the supervised ones; how many there were."""

    async def sweep_nodes(self, nodes: Iterable[str], supervised: Iterable[str]) -> None:
        """End processes on nodes of jobs that are not among the supervised ones."""

    async def close(self) -> None:
        """Let go of connections; supervisors go on."""
