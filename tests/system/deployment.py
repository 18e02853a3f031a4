"""A real `malletrain up` with its five processes, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil

from malletrain.caller.credentials import owner_credential
from malletrain.cli.demo.setup import free_ports
from malletrain.cli.shared.output import state_name
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.support.channels import plain_blocking_channel
from tests.support.waiting import wait_until


@dataclass
class Deployment:
    """A running system.

    Attributes:
        folder: State folder.
        config: TOML file.
        process: The process of `malletrain up`.
        prefix: What goes before each command, e.g. to run it in another network namespace.
        python: The interpreter that runs it, and its commands.
        of_release_0_1: Whether its services are of release 0.1, which has no TLS on loopback.
    """

    folder: Path
    config: Path
    process: subprocess.Popen[bytes]
    prefix: tuple[str, ...] = ()
    python: str = sys.executable
    of_release_0_1: bool = False

    def job(self, job_id: str) -> resources_pb2.Job:
        """A job, without the cost of a command: for conditions that are looked at again and again."""
        with closing(self.stubs) as stubs:
            request = job_manager_pb2.GetJobRequest(job_id=job_id)
            response = stubs.job_manager.GetJob(request, timeout=60, wait_for_ready=True)
            return response.job

    def state(self, job_id: str) -> str:
        """A job's state, e.g. RUNNING."""
        return state_name(self.job(job_id).state)

    @property
    def stubs(self) -> ServiceStubs:
        """New channels to its services."""
        settings = load(self.config)
        kind = PlainStubs if self.of_release_0_1 else ServiceStubs
        return kind(settings, owner_credential(settings))

    def address(self, service: str) -> str:
        """HOST:PORT of a service."""
        return load(self.config).addresses.of(service)

    def pids(self) -> dict[str, int]:
        """Process id of each running service."""
        return service_pids(self.process.pid)

    def serves(self) -> bool:
        """Whether all services have answered since their start; AssertionError with the log where `up` has ended."""
        ended = self.process.poll() is not None
        log = (self.folder / "up.log").read_text()
        assert not ended, log
        return "stop with Ctrl-C" in log

    def command(self, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """Run `malletrain` against this system."""
        return run_command(*arguments, cwd=self.folder, timeout=timeout, prefix=self.prefix, python=self.python)

    def json(self, *arguments: str) -> Any:
        """The JSON that a verb prints."""
        done = self.command(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


class PlainStubs(ServiceStubs):
    """Stubs of services of release 0.1."""

    def _channel(self, service: str) -> grpc.Channel:
        if service not in self._channels:
            address = self.settings.peer(service).address
            self._channels[service] = plain_blocking_channel(address, self.credential)
        return self._channels[service]


def run_command(
    *arguments: str,
    cwd: Path,
    timeout: float = 30,
    prefix: tuple[str, ...] = (),
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run `malletrain` in a folder, whose malletrain.toml it reads where there is one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
    return subprocess.run(
        [*prefix, python, "-m", "malletrain.cli.main", *arguments],
        cwd=cwd,
        env=environment | {"COLUMNS": "200", "MALLETRAIN_VALIDATE_STATE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def service_pids(up_pid: int) -> dict[str, int]:
    """Process id of each service that is a child of a `malletrain up`."""
    found = {}
    for child in psutil.Process(up_pid).children():
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "serve" in words:
            found[words[words.index("serve") + 1]] = child.pid
    return found


@contextmanager
def deployed(
    folder: Path,
    settings: str,
    host: str = "127.0.0.1",
    prefix: tuple[str, ...] = (),
    shared: str = "",
    seconds: float = 60.0,
) -> Iterator[Deployment]:
    """Start the five services with these TOML settings, on free ports of a host; stop them at the end.

    Args:
        folder: State folder, with the file of the settings.
        settings: Sections of the settings.
        host: Where the services listen.
        prefix: What goes before each command.
        shared: Settings outside of any section.
        seconds: How long they may take to start, and, if it is more than 30 s, to stop.
    """
    write_settings(folder, _without_standby(settings), host, shared)
    deployment = start(folder, prefix)
    try:
        wait_until(deployment.serves, seconds, "all services serving")
        yield deployment
    finally:
        deployment.process.send_signal(signal.SIGTERM)
        deployment.process.wait(max(seconds, 30.0))


def write_settings(folder: Path, settings: str, host: str = "127.0.0.1", shared: str = "") -> None:
    """Make a state folder with the file of its settings; see `deployed`."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses = "\n".join(f'{name} = "{host}:{port}"' for name, port in zip(SERVICES, free_ports(), strict=True))
    config = folder / "malletrain.toml"
    text = f'state_dir = "{folder}"\n{shared}\n[addresses]\n{addresses}\n{settings}'
    config.write_text(text)


def _without_standby(settings: str) -> str:
    """Settings under which no standby process imports torch, unless they say otherwise: most tests train nothing."""
    if "standby_memory_mib" in settings:
        return settings
    off = "[job_manager]\nstandby_memory_mib = 0\n"
    return settings.replace("[job_manager]\n", off) if "[job_manager]\n" in settings else settings + "\n" + off


def start(folder: Path, prefix: tuple[str, ...] = (), python: str = sys.executable) -> Deployment:
    """Start the five services on a state folder that has the file of its settings."""
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*prefix, python, "-m", "malletrain.cli.main", "up"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    return Deployment(folder, folder / "malletrain.toml", process, prefix, python)
