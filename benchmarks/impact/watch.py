"""Observes in /proc which nodes have processes of ours, independently of the services."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.processes import process_ids, read_arguments, read_environment, read_status
from malletrain.runtime.access.keys import KEY_FILE, installation_id, keys_folder

_PERIOD_S = 0.04
_YOUNG_S = 2.0
"""A process that is younger may still become another program by exec."""


class Watcher:
    """Looks every 0.04 s, in a thread. Times are seconds since the epoch.

    Attributes:
        empty: For each node, when it became free of our processes.
        workers: As `empty`, only if there had been workers and not just an agent.
        spans: For each node, from when to when processes of ours were there.
    """

    def __init__(self, placeholder: str, slurm_conf: str, folder: Path) -> None:
        """Begin to look.

        Args:
            placeholder: Name of our batch jobs.
            slurm_conf: Configuration of the cluster. There may be other clusters on this machine.
            folder: Parent of the folders of our trainings.
        """
        self.empty: dict[str, list[float]] = {}
        self.workers: dict[str, list[float]] = {}
        self.spans: dict[str, list[tuple[float, float]]] = {}
        self._batch = {"SLURM_JOB_NAME": placeholder, "SLURM_CONF": slurm_conf}
        self._folder = folder
        self._nodes: dict[int, tuple[str, bool] | None] = {}
        self._first: dict[int, float] = {}
        self._occupied: dict[str, bool] = {}
        self._since: dict[str, float] = {}
        self._looking = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(_PERIOD_S):
            self.look()

    def look(self) -> dict[str, bool]:
        """Nodes with processes of ours, and whether there are workers among them."""
        with self._looking:
            return self._look()

    def _look(self) -> dict[str, bool]:
        pids = set(process_ids())
        now = time.time()
        for pid in self._nodes.keys() - pids:
            del self._nodes[pid], self._first[pid]
        occupied: dict[str, bool] = {}
        for pid in pids:
            first = self._first.setdefault(pid, now)
            if pid not in self._nodes or now - first < _YOUNG_S:
                self._nodes[pid] = self._mark(pid)
            mark = self._nodes[pid]
            if mark is not None and _lives(pid):
                occupied[mark[0]] = occupied.get(mark[0], False) or mark[1]
        for node in occupied.keys() - self._occupied.keys():
            self._since[node] = now
        for node in self._occupied.keys() - occupied.keys():
            end = time.time()
            self.empty.setdefault(node, []).append(end)
            self.spans.setdefault(node, []).append((self._since[node], end))
            if self._occupied[node]:
                self.workers.setdefault(node, []).append(end)
        self._occupied = {node: worker or self._occupied.get(node, False) for node, worker in occupied.items()}
        return occupied

    def _mark(self, pid: int) -> tuple[str, bool] | None:
        """The node of a process, and whether it is a worker; None if it is not ours."""
        found = read_environment(pid)
        if node := found.get(env.NODE):
            ours = Path(found.get(env.JOB_DIR, "/")).is_relative_to(self._folder)
            return (node, True) if ours else None
        if self._batch.items() <= found.items() and (node := found.get("SLURMD_NODENAME")):
            return node, False
        return self._agent(pid)

    def _agent(self, pid: int) -> tuple[str, bool] | None:
        """The node of an agent that was started over ssh; None if the process is not one of ours."""
        words = read_arguments(pid)
        if "malletrain.agent" not in words or not {"--node", "--installation"} <= set(words):
            return None
        node, installation = (words[words.index(option) + 1] for option in ("--node", "--installation"))
        return (node, False) if installation == self._installation() else None

    def _installation(self) -> str:
        """Identifier of our installation; empty before it has one."""
        state = self._folder / "state"
        return installation_id(state) if (keys_folder(state) / KEY_FILE).exists() else ""


def _lives(pid: int) -> bool:
    status = read_status(pid)
    return status is not None and not status.ended
