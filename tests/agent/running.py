"""Real agents, as processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from malletrain.common.cgroups import Cgroup, own_folder
from tests.support.certificates import node_certificate
from tests.support.waiting import wait_until


class RunningAgent:
    """One agent."""

    def __init__(
        self,
        node: str,
        folder: Path,
        head: str,
        grace: float,
        *more: str,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        standby_mib: int = 0,
        certificate: Path | None = None,
    ) -> None:
        self.node = node
        self._log = folder / f"agent-{node}.log"
        shown = str(certificate or node_certificate(folder, node))
        standby = ["--standby-mib", str(standby_mib)] if standby_mib else []
        command = [python, "-m", "malletrain.agent", "--node", node, "--head", head, "--certificate", shown]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--grace", str(grace), *standby, *more],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def address(self) -> str:
        """Where it serves supervisors."""
        wait_until(lambda: "is served on" in self.said, 30, f"the agent of {self.node}")
        return self.said.partition("is served on ")[2].split()[0]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        _remove_cgroups(self.process.pid)


def _remove_cgroups(agent: int) -> None:
    """Remove the empty cgroups of an agent that was killed, as its next one would."""
    with contextlib.suppress(OSError):
        for folder in own_folder().glob(f"malletrain-agent-*.{agent}.*"):
            Cgroup(folder).remove()


@contextmanager
def agents(
    folder: Path, *nodes: str, head: str = "127.0.0.1:9", grace: float = 1.5, standby_mib: int = 0
) -> Iterator[dict[str, RunningAgent]]:
    """Start agents on nodes. The folder is the state folder of their installation.

    They keep no standby processes unless that is asked for: most tests are over before one has booted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    running = {node: RunningAgent(node, folder, head, grace, standby_mib=standby_mib) for node in nodes}
    try:
        yield running
    finally:
        for agent in running.values():
            agent.close()
