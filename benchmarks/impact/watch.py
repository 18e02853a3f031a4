"""Which nodes have processes of ours, seen from outside: in /proc, whatever the services believe."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PERIOD_S = 0.04
_YOUNG_S = 2.0
"""So long a process may still turn into something else, by exec."""
_ENDED = ("Z", "X")


class Watcher:
    """Looks all the time, in a thread.

    Attributes:
        empty: By node: when it had become empty, in seconds since the epoch.
        workers: As `empty`, only where there had been workers, not only an agent.
        spans: By node: from when to when there was something of ours, in seconds since the epoch, until it was empty.
    """

    def __init__(self, placeholder: str, slurm_conf: str, folder: Path) -> None:
        """Begin to look.

        Args:
            placeholder: Name of our batch jobs.
            slurm_conf: The cluster's configuration: there may be others on this machine.
            folder: Below it lie the folders of our trainings.
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
        """Nodes on which something of ours lives, and whether it is a worker."""
        with self._looking:
            return self._look()

    def _look(self) -> dict[str, bool]:
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - 25 times a second
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
        """The node that a process is on, and whether it is a worker; None where it is not ours."""
        try:
            pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if node := found.get("MALLETRAIN_NODE"):
            ours = Path(found.get("MALLETRAIN_JOB_DIR", "/")).is_relative_to(self._folder)
            return (node, True) if ours else None
        if self._batch.items() <= found.items() and (node := found.get("SLURMD_NODENAME")):
            return node, False
        return self._agent(pid)

    def _agent(self, pid: int) -> tuple[str, bool] | None:
        """The node of an agent that was started by ssh; None where it is none of ours."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        if "malletrain.agent" not in words or not {"--node", "--token"} <= set(words):
            return None
        node, token = (words[words.index(option) + 1] for option in ("--node", "--token"))
        return (node, False) if Path(token).is_relative_to(self._folder) else None


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in _ENDED
    except OSError:
        return False
