"""Looks at processes and files of the installation, from outside: /proc and sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.control_loop import service_processes
from benchmarks.soaking.observations import Observations, Scan, Sizes, Use
from malletrain.common.environment import JOB_DIR, JOB_ID, NODE
from malletrain.common.processes import FoundProcess, ProcessId, find_processes, identify, read_arguments

_SCAN_S, _USE_S = 1.0, 2.0
_NOT_OURS = ("disk.img", "filler", "lost+found")
_OF_JOBS = "jobs"


@dataclass(frozen=True)
class Installation:
    """What belongs to the run.

    Attributes:
        state: State folder of the services.
        up: Process of `malletrain up`.
    """

    state: Path
    up: int

    def services(self) -> dict[str, psutil.Process]:
        """Processes of the services that run now."""
        with suppress(psutil.NoSuchProcess):  # one has ended in this moment
            return service_processes(self.up)
        return {}

    def job_processes(self) -> Iterator[FoundProcess]:
        """All processes that belong to jobs of this installation."""
        jobs = str(self.state / "jobs") + "/"
        return find_processes(lambda found: found.get(JOB_DIR, "").startswith(jobs))

    def supervisors(self) -> dict[str, ProcessId]:
        """The supervisor of each job, or what stands for it."""
        found = {}
        for process in self.job_processes():
            words = read_arguments(process.id.pid)
            if NODE not in process.environment and ("malletrain.supervisor" in words or words[:1] == ["sleep"]):
                found[process.environment[JOB_ID]] = process.id
        return found


def scan(installation: Installation, now: Callable[[], float]) -> Scan:
    """Which jobs have processes on which nodes."""
    begin = now()
    found = [process for process in installation.job_processes() if process.environment.get(NODE)]
    lasting = [process for process in found if identify(process.id.pid) == process.id]
    return Scan(
        begin,
        now(),
        frozenset((entry.environment[JOB_ID], entry.environment[NODE], entry.id.pid) for entry in lasting),
    )


def uses(installation: Installation, at: float) -> list[Use]:
    """What each service uses now."""
    found = []
    for name, process in installation.services().items():
        with suppress(psutil.Error):  # it has ended
            found.append(Use(at, name, process.pid, process.memory_info().rss, process.num_fds()))
    return found


def sizes(state: Path, at: float) -> Sizes:
    """Sizes of the services' files; the jobs' folders count together, and a database with its write-ahead log."""
    found: dict[str, int] = {}
    for path in state.rglob("*"):
        relative = path.relative_to(state)
        if relative.parts[0] in _NOT_OURS:
            continue
        with suppress(OSError):  # it is gone
            if path.is_file() and not path.is_symlink():
                name = _OF_JOBS if relative.parts[0] == _OF_JOBS else str(relative).removesuffix("-wal")
                found[name] = found.get(name, 0) + path.stat().st_size
    return Sizes(at, found)


class Sampler:
    """Looks again and again until it is closed."""

    def __init__(self, installation: Installation, seen: Observations, now: Callable[[], float]) -> None:
        self._installation, self._seen, self._now = installation, seen, now
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._scan, daemon=True),
            threading.Thread(target=self._measure, daemon=True),
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _scan(self) -> None:
        while not self._ending.wait(_SCAN_S):
            self._seen.scans.append(scan(self._installation, self._now))

    def _measure(self) -> None:
        while not self._ending.wait(_USE_S):
            self._seen.uses.extend(uses(self._installation, self._now()))
            self._seen.sizes.append(sizes(self._installation.state, self._now()))
