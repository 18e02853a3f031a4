"""One job, and what its supervisor works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.job_folder import LOGS_FOLDER
from malletrain.supervisor.agent_links import AgentLinks
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.local_workers import LocalWorkers
from malletrain.supervisor.view import Outcome, State
from malletrain.supervisor.worker_pool import WorkerPool


@dataclass(frozen=True)
class Context:
    """One job, and what its supervisor works with.

    Attributes:
        launch: The job's launch.
        folder: The job's folder.
        publish: Called with every new state.
        mark: Identifies this supervisor in the workers' environment.
        agents: Connections to the agents of the nodes that are not this machine.
        local: Starts the workers on this machine.
        record: Writes the outcome to the job's folder.
    """

    launch: Launch
    folder: Path
    publish: Callable[[State], None]
    mark: str
    agents: AgentLinks
    local: LocalWorkers
    record: Callable[[Outcome, str], None]

    def pool(self, defaults: Mapping[str, str], *, warm: bool = True) -> WorkerPool:
        """An empty pool; see `WorkerPool`."""
        logs = self.folder / LOGS_FOLDER
        return WorkerPool(self.launch, logs, defaults, self.mark, self.agents, self.local, warm=warm)
