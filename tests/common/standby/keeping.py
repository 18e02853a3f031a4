"""Standby processes in tests: kept by hand, with workers that run to their end."""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from malletrain.common.orphans import adopt_orphans
from malletrain.common.standby.config import StandbyConfig
from malletrain.common.standby.manager import StandbyManager
from malletrain.common.worker_process import WorkerProcess
from tests.support.waiting import wait_until

PATIENCE = 120.0
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("MALLETRAIN_", "PYTEST"))},
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}
JOB = {"MALLETRAIN_JOB_ID": "j1", "MALLETRAIN_NODE": "n1", "MALLETRAIN_BACKEND": "horovod"}


class Clock:
    """Time that passes on command."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """A manager, what it has said, and its clock."""

    def __init__(self, config: StandbyConfig | None, memory_bytes: int = 2 << 30, python: str = "") -> None:
        adopt_orphans()
        self._python = python
        self.clock = Clock()
        self.said: list[str] = []
        self.manager = StandbyManager(self.said.append, config=config, memory_bytes=memory_bytes, clock=self.clock)

    def tick(self) -> None:
        self.manager.tick(busy=False)

    def wait_ready(self, but_not: int = 0) -> int:
        """Wait for a standby process; returns its process id."""

        def is_ready() -> bool:
            self.tick()
            return self.manager.is_ready and self.manager.pid != but_not

        wait_until(is_ready, PATIENCE, f"a standby process ({self.said})")
        return self.manager.pid

    def wait_said(self, words: str) -> None:
        def is_said() -> bool:
            self.tick()
            return any(words in line for line in self.said)

        wait_until(is_said, PATIENCE, f"{words!r} in {self.said}")

    def start(
        self, folder: Path, script: str, environment: Mapping[str, str] = ENVIRONMENT, *, patient: bool = False
    ) -> WorkerProcess:
        """Start a worker with a script; it runs at once, or as soon as nothing is worth waiting for."""
        (folder / "script.py").write_text(script)
        command = [self.python, "script.py", "a", "-b"]
        if patient:
            whole = {**environment, **JOB}
            wait_until(lambda: not self.manager.is_worth_waiting(command, str(folder), whole), PATIENCE, "the standby")
        worker = WorkerProcess(command, str(folder), {**environment, **JOB}, folder / "log", standby=self.manager)
        wait_until(worker.is_warm, PATIENCE, "the worker")
        worker.go({"PLACE": "1"})
        return worker

    def run(
        self, folder: Path, script: str, environment: Mapping[str, str] = ENVIRONMENT, *, patient: bool = False
    ) -> str:
        """What a worker prints; it must end well."""
        (folder / "log").unlink(missing_ok=True)
        worker = self.start(folder, script, environment, patient=patient)
        wait_until(lambda: worker.poll() is not None, PATIENCE, "the worker's end")
        worker.close()
        said = (folder / "log").read_text()
        assert worker.poll() == 0, said
        # There is no torch in an environment without packages, which the bootstrap says.
        return "".join(line for line in said.splitlines(True) if not line.startswith("worker_bootstrap: "))

    @property
    def python(self) -> str:
        if self._python:
            return self._python
        config = self.manager.config
        assert config is not None
        return config.interpreter


@contextmanager
def kept(config: StandbyConfig | None, memory_bytes: int = 2 << 30, python: str = "") -> Iterator[Kept]:
    """Keep a standby process. Without a config the first worker shows how; `python` is its interpreter."""
    found = Kept(config, memory_bytes, python)
    try:
        yield found
    finally:
        found.manager.close()


def small_environment(folder: Path) -> tuple[StandbyConfig, Path]:
    """A virtual environment without packages, and its folder for packages: a standby process there starts at once."""
    venv.EnvBuilder(symlinks=True).create(folder)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return StandbyConfig(str(folder / "bin/python"), ENVIRONMENT, ()), folder / "lib" / version / "site-packages"


def is_forked(pid: int) -> bool:
    """Whether a process has been forked from a standby process: its arguments have more room than they need."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0\0")
