"""Stock `horovodrun` with a host discovery script, as installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rescaling.launching import ENVIRONMENT, TRAINERS, LauncherError
from benchmarks.rescaling.processes import loopback, started


class HorovodrunJob:
    """A job under horovodrun."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self._folder = folder
        self.process = process

    def set_hosts(self, hosts: Sequence[str]) -> None:
        """Have the discovery script print these from now on; horovodrun runs it once a second."""
        fresh = self._folder / "hosts.new"
        fresh.write_text("".join(f"{host}:1\n" for host in hosts))
        fresh.replace(self._folder / "hosts")

    def check(self) -> None:
        """See `Running`."""
        if self.process is not None and self.process.poll() is not None:
            raise LauncherError(f"horovodrun ended with {self.process.returncode}")

    def is_settled(self) -> bool:
        """See `Running`."""
        return True


class Horovodrun:
    """See `Launcher`.

    It starts workers itself, without ssh, on hosts whose names resolve to an address of this machine. These are four
    ways to write the loopback address, so that it sees four hosts.
    """

    name = "horovodrun"
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "127.1", "127.0.1")

    @contextmanager
    def start(self, folder: Path, hosts: Sequence[str]) -> Iterator[HorovodrunJob]:
        """See `Launcher`."""
        program = Path(sys.executable).with_name("horovodrun")
        if not program.exists():
            raise LauncherError(f"{program} is missing: run deploy/install-horovod.sh")
        script = folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat '{folder}/hosts'\n")
        script.chmod(0o755)
        job = HorovodrunJob(folder)
        job.set_hosts(hosts)
        options = ["-np", str(len(hosts)), "--min-np", "1", "--max-np", str(len(self.hosts))]
        options += ["--host-discovery-script", str(script), "--network-interfaces", loopback(), "--gloo"]
        command = [str(program), *options]
        command += [sys.executable, str(TRAINERS / "elastic_horovod.py")]
        with started(command, folder, ENVIRONMENT) as job.process:
            yield job
