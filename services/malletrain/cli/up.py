"""`malletrain up`: all services, each a process, restarted when it ends."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.settings import AllSettings, load
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.config import SERVICES
from malletrain.runtime.errors import MalleTrainError
from malletrain.runtime.health import is_serving

_LOOK_SECONDS = 0.1
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_TRIES_BEFORE_FIRST_SERVING = 3
_STOP_SECONDS = 20.0
_WRONG_USE = 2


def up(
    config: Annotated[
        Path | None, typer.Option(help="TOML file; by default ./malletrain.toml where it exists.")
    ] = None,
) -> None:
    """Run the five services until Ctrl-C or SIGTERM, which stops the jobs at a checkpoint; a kill -9 does not."""
    settings = load(config)
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    with only_one(settings.state_dir):
        keeper = Keeper(settings, config)
        try:
            keeper.start()
            while not ending.wait(_LOOK_SECONDS):
                keeper.look()
        finally:
            keeper.stop()


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold the lock of a state folder.

    Raises:
        MalleTrainError: another `malletrain up` holds it.
    """
    with (state_dir / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MalleTrainError(f"another `malletrain up` runs on {state_dir}") from None
        yield


@dataclass
class Child:
    """One service's process and its record so far."""

    name: str
    process: subprocess.Popen[bytes] | None = None
    served: bool = False
    failures: int = 0
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    start_in: float = 0.0


class Keeper:
    """Starts the services, restarts those that end, stops them all."""

    def __init__(self, settings: AllSettings, config: Path | None) -> None:
        self._settings = settings
        self._config = config
        self._children = [Child(name) for name in SERVICES]
        self._channels = {name: open_blocking_channel(settings.addresses.of(name)) for name in SERVICES}
        self._announced = False

    def start(self) -> None:
        """Start every service."""
        for child in self._children:
            self._launch(child)

    def look(self) -> None:
        """Notice what ended or began to serve since the last look.

        Raises:
            MalleTrainError: a service that has never served ends again and again.
        """
        for child in self._children:
            if child.process is None:
                child.start_in -= _LOOK_SECONDS
                if child.start_in <= 0:
                    self._launch(child)
            elif child.process.poll() is not None:
                self._ended(child)
            elif not child.served and is_serving(self._channels[child.name]):
                child.served = True
                child.pause_seconds = _FIRST_PAUSE_SECONDS
        if not self._announced and all(child.served for child in self._children):
            self._announced = True
            for child in self._children:
                typer.echo(f"{child.name:<12} {self._settings.addresses.of(child.name)}")
            typer.echo(f"state and logs in {self._settings.state_dir}; stop with Ctrl-C")

    def _launch(self, child: Child) -> None:
        command = [sys.executable, "-m", "malletrain.cli.main", "serve", child.name, "--parent", str(os.getpid())]
        if self._config is not None:
            command += ["--config", str(self._config)]
        path = self._log_path(child)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as log:
            child.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        child.served = False

    def _ended(self, child: Child) -> None:
        assert child.process is not None
        code = child.process.returncode
        child.process = None
        child.failures += 1
        typer.echo(f"{child.name} ended with {code}; starting it again in {child.pause_seconds:g} s", err=True)
        if not self._announced and (code == _WRONG_USE or child.failures >= _TRIES_BEFORE_FIRST_SERVING):
            raise MalleTrainError(f"{child.name} does not start: {last_line(self._log_path(child))}")
        child.start_in = child.pause_seconds
        child.pause_seconds = min(2 * child.pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _log_path(self, child: Child) -> Path:
        return self._settings.state_dir / "logs" / f"{child.name}.log"

    def stop(self) -> None:
        """Ask every service to drain, and kill what has not ended in time."""
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for channel in self._channels.values():
            channel.close()


def last_line(path: Path) -> str:
    """The last line of a log that is not empty."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"see {path}"
