"""Services on this machine, for trying MalleTrain without an installation: they end with the block that has them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from malletrain.api.connection import Connection, make_default
from malletrain.caller.settings import caller_settings
from malletrain.common.addresses import free_loopback_ports
from malletrain.common.environment import PREFIX
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.settings_file import SERVICES

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.1
_MAX_NODES = 1000
_TRIES = 3
_SERVED = "stop with Ctrl-C"
"""What `malletrain up` says when all services have answered."""


class LocalCluster(Connection):
    """Five services and some virtual nodes on this machine, and the connection to them.

    They end with the block, with `close`, and at the end of this process, also if it is killed; a folder that was not
    named is left behind only then.

    Attributes:
        folder: State folder; removed at the end unless it was named.
        nodes: Names of the nodes.
    """

    def __init__(self, nodes: int, folder: Path | None, settings: Mapping[str, str]) -> None:
        """Start them; see `local`."""
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= _MAX_NODES:
            raise InvalidInputError("nodes", f"a whole number from 1 to {_MAX_NODES}", nodes)
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="malletrain-")) if folder is None else folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        config = self.folder / "malletrain.toml"
        try:
            self._start_on_free_ports(config, settings)
            super().__init__(caller_settings(config, environment={}))
        except BaseException:
            self._stop()
            raise
        atexit.register(self.close)
        self._before = make_default(self)

    def __repr__(self) -> str:
        return f"<malletrain.LocalCluster of {len(self.nodes)} nodes in {self.folder}>"

    def close(self) -> None:
        """End its jobs and services. Once more does nothing."""
        if self._process is None:
            return
        atexit.unregister(self.close)
        super().close()
        make_default(self._before)
        self._stop()

    def _start_on_free_ports(self, config: Path, settings: Mapping[str, str]) -> None:
        """Start them on ports that are free; on others if another program has taken one in the meantime."""
        for tries_left in reversed(range(_TRIES)):
            config.write_text(_configuration(self.folder, self.nodes), encoding="utf-8")
            try:
                self._start(config, settings)
            except MalleTrainError:
                if not tries_left or not self._has_lost_a_port():
                    raise
                self._end_services()
            else:
                return

    def _has_lost_a_port(self) -> bool:
        logs = [self.folder / "up.log", *(self.folder / "logs").glob("*.log")]
        return any("can't listen on" in log.read_text(errors="replace") for log in logs)

    def _start(self, config: Path, settings: Mapping[str, str]) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        own |= {f"{PREFIX}{name.replace('.', '__').upper()}": value for name, value in settings.items()}
        command = [sys.executable, "-P", "-m", "malletrain.cli.main"]
        command += ["up", "--config", str(config), "--parent", str(os.getpid())]
        log = self.folder / "up.log"
        with log.open("wb") as output:
            # In a session of its own: an interrupt of the notebook is not meant for it.
            self._process = subprocess.Popen(
                command, env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while _SERVED not in (text := log.read_text(errors="replace")):
            if self._process.poll() is not None:
                raise MalleTrainError(f"the services do not start: {_last_line(text)}")
            if time.monotonic() > deadline:
                raise MalleTrainError(f"the services have not started within {_START_SECONDS:g} s: see {log}")
            time.sleep(_POLL_SECONDS)

    def _stop(self) -> None:
        self._end_services()
        if self._temporary:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.folder)

    def _end_services(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def local(
    nodes: int = 4, *, folder: str | Path | None = None, settings: Mapping[str, str] | None = None
) -> LocalCluster:
    """Run the services on this machine, with virtual nodes, and connect to them: for trying things out.

        with malletrain.local(nodes=4) as cluster:
            job = cluster.submit(["python", "train.py"])
            job.wait()

    Until its end, `malletrain.submit` and its like use it, too. Needs `malletrain[head]`. Jobs run with the interpreter
    of this process.

    Args:
        nodes: Number of nodes.
        folder: State folder, which stays; by default one that is removed at the end.
        settings: Further settings, e.g. `{"job_manager.standby_memory_mib": "0"}`.

    Raises:
        InvalidInputError: an argument is not as expected.
        MalleTrainError: the services do not start; the message says why.
    """
    return LocalCluster(nodes, None if folder is None else Path(folder), settings or {})


def _configuration(folder: Path, nodes: tuple[str, ...]) -> str:
    ports = zip(SERVICES, free_loopback_ports(len(SERVICES)), strict=True)
    addresses = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in ports)
    return f"""\
state_dir = {json.dumps(str(folder))}

[addresses]
{addresses}

[scavenger]
source = "static"
nodes = {json.dumps(list(nodes))}
debounce_seconds = 0

[job_manager]
trainer_python = {json.dumps(sys.executable)}
"""


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1][:500] if lines else "they say nothing"
    return f"{last}; pip install 'malletrain[head]'" if last.startswith("ModuleNotFoundError") else last
