"""One job, and what its supervisor works with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.files import open_log
from malletrain.common.job_folder import LAUNCH_LOG, LOGS_FOLDER
from malletrain.common.launch_file import Launch
from malletrain.supervisor.loop.view import Outcome, State
from malletrain.supervisor.workers.agent_links import AgentLinks
from malletrain.supervisor.workers.local_workers import LocalWorkers
from malletrain.supervisor.workers.worker_pool import WorkerPool

log = logging.getLogger(__name__)


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

    def tell(self, text: str) -> None:
        """Tell the job's owner something, in the job's log."""
        log.warning("%s", text)
        try:
            self.folder.joinpath(LOGS_FOLDER).mkdir(exist_ok=True)
            with open_log(self.folder / LOGS_FOLDER / LAUNCH_LOG) as file:
                file.write(f"malletrain: {text}\n".encode())
        except OSError as error:
            log.warning("it can't be added to the job's log: %s", error)

    def pool(self, defaults: Mapping[str, str], *, warm: bool = True) -> WorkerPool:
        """An empty pool; see `WorkerPool`."""
        logs = self.folder / LOGS_FOLDER
        return WorkerPool(self.launch, logs, defaults, self.mark, self.agents, self.local, warm=warm)
