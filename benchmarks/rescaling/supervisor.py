"""MalleTrain's job supervisor, with either of its backends."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from benchmarks.rescaling.launching import ENVIRONMENT, TRAINERS, LauncherError
from benchmarks.rescaling.processes import MARK, sweep
from tests.supervisor.running import Supervised, supervised

_READY = re.compile(r"standby process \d+ is ready")


class SupervisedJob:
    """A job under a supervisor."""

    def __init__(self, job: Supervised, has_standby: bool) -> None:
        self._job = job
        self._has_standby = has_standby

    def set_hosts(self, hosts: Sequence[str]) -> None:
        """See `Running`."""
        try:
            self._job.command(*hosts)
        except grpc.RpcError as error:
            raise LauncherError(f"the supervisor did not take a command: {error}") from error

    def check(self) -> None:
        """See `Running`."""
        if self._job.process.poll() is not None:
            raise LauncherError(f"the supervisor ended with {self._job.process.returncode}")

    def is_settled(self) -> bool:
        """See `Running`."""
        said = (self._job.folder / "supervisor.log").read_text(errors="replace")
        return not self._has_standby or _READY.search(said) is not None


class Supervisor:
    """See `Launcher`."""

    hosts: Sequence[str] = ("n1", "n2", "n3", "n4")

    def __init__(
        self,
        name: str,
        backend: str,
        trainer: str,
        standby_mib: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe it.

        Args:
            name: Its name in the results.
            backend: The supervisor's backend.
            trainer: File name of the training.
            standby_mib: Largest share of memory of its standby process in MiB; 0: it has none.
            environment: Variables of the training, beside those of all.
        """
        self._environment = {**ENVIRONMENT, **(environment or {})}
        self.name = name
        self._backend = backend
        self._trainer = TRAINERS / trainer
        self._standby_mib = standby_mib

    @contextmanager
    def start(self, folder: Path, hosts: Sequence[str]) -> Iterator[SupervisedJob]:
        """See `Launcher`."""
        command = [sys.executable, str(self._trainer)]
        with ExitStack() as stack:
            stack.callback(sweep, folder)
            environment = {**self._environment, MARK: str(folder)}
            context = supervised(
                folder,
                *hosts,
                command=command,
                environment=environment,
                backend=self._backend,
                standby_mib=self._standby_mib,
            )
            try:
                running = SupervisedJob(stack.enter_context(context), self._standby_mib > 0)
            except AssertionError as error:
                raise LauncherError(f"the supervisor did not start: {error}") from error
            running.check()
            yield running
