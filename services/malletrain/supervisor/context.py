"""One job, the launch that JobManager has written for it, and what its supervisor works with."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.accounts import may_gain_nothing
from malletrain.common.files import open_log
from malletrain.common.job_folder import LAUNCH_FILE, LAUNCH_LOG, LOGS_FOLDER
from malletrain.common.launch_file import Launch, launch_from_document
from malletrain.common.untrusted_json import JsonBounds, parse_object
from malletrain.supervisor.loop.view import Outcome, State
from malletrain.supervisor.workers.agent_links import AgentLinks
from malletrain.supervisor.workers.local_workers import LocalWorkers
from malletrain.supervisor.workers.worker_pool import WorkerPool

_BOUNDS = JsonBounds(4 << 20, max_depth=8, max_entries=200_000)
"""More than the longest command and environment that the kernel takes."""


class LaunchError(Exception):
    """The launch file can't be used."""


def read_launch(folder: Path) -> Launch:
    """Read `launch.json` of a job's folder.

    Raises:
        LaunchError: the file is missing, no JSON, or lacks a field.
    """
    path = folder / LAUNCH_FILE
    try:
        with path.open("rb") as file:
            content = file.read(_BOUNDS.max_bytes + 1)
        return launch_from_document(parse_object(content, _BOUNDS))
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path}: expected a launch file, got {error!r}") from error


def check_user(launch: Launch) -> None:
    """Refuse to run a user's program with any other rights than the user's.

    Raises:
        LaunchError: this process is somebody else, or could become somebody else.
    """
    if launch.user_id is None:
        return
    if launch.user_id == 0 or set(os.getresuid()) != {launch.user_id} or not may_gain_nothing():
        raise LaunchError(f"expected to run as user id {launch.user_id} for good, got {os.getresuid()}")


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
