"""What is asked of a launcher, and what all of them have in common: where a training notes its batches and workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from benchmarks.rescaling.batches import Batch, parse

TRAINERS = Path(__file__).with_name("trainers")
_ROOT = str(Path(__file__).parents[2])
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH")))),
}
"""Environment of all trainings, whoever launches them."""


class LauncherError(Exception):
    """The launcher has ended, or could not start."""


class Running(Protocol):
    """One job under a launcher."""

    def set_hosts(self, hosts: Sequence[str]) -> None:
        """Command these hosts, of one worker each; does not wait."""

    def check(self) -> None:
        """Look whether the job still runs.

        Raises:
            LauncherError: it does not.
        """

    def is_settled(self) -> bool:
        """Whether what the launcher keeps ready for the next change is ready for the first time."""


class Launcher(Protocol):
    """One way to launch elastic trainings.

    Attributes:
        name: Its name in the results.
        hosts: Names that it can use for hosts, all on this machine; at least four.
    """

    name: str
    hosts: Sequence[str]

    def start(self, folder: Path, hosts: Sequence[str]) -> AbstractContextManager[Running]:
        """Start a job; in the end, end all its processes.

        Args:
            folder: The job's own, empty.
            hosts: Where to begin.
        """


def batches(folder: Path) -> list[Batch]:
    """What rank 0 has noted so far."""
    path = folder / "batches"
    return parse(path.read_text()) if path.exists() else []


def kill_last_rank(folder: Path, size: int) -> None:
    """kill -9 of the worker with the highest rank of a world of this size.

    Raises:
        LauncherError: the note of that worker is of another world, or the worker has gone.
    """
    pid, noted_size = (int(word) for word in (folder / f"worker-{size - 1}").read_text().split())
    if noted_size != size:
        raise LauncherError(f"rank {size - 1} was last seen in a world of {noted_size}, expected {size}")
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError as error:
        raise LauncherError(f"rank {size - 1} has gone before it was killed") from error


def last_words(folder: Path, lines: int = 8) -> str:
    """The ends of all logs of a job."""
    found = []
    for path in sorted(folder.rglob("*.log")):
        end = path.read_text(errors="replace").splitlines()[-lines:]
        found += [f"--- {path.relative_to(folder)}", *end]
    return "\n".join(found)
