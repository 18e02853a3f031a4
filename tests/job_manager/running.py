"""JobManager as a process of its own, to be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.runtime.config import Addresses

MAIN = """
import asyncio, json, sys
from malletrain.job_manager.service import create
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.logs import configure_logging
from malletrain.runtime.process import run_service

async def main():
    given = json.loads(sys.argv[1])
    settings = Settings(**given["settings"])
    section = JobManagerSettings(**given["section"])
    await run_service(create(settings, section, SystemClock()), settings.addresses.job_manager)

configure_logging("job_manager")
asyncio.run(main())
"""


@dataclass
class Process:
    """A JobManager that serves at an address that stays the same over restarts."""

    state_dir: Path
    python: Path
    peers: Addresses
    section: dict[str, object] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"

    def start(self) -> None:
        addresses = self.peers.model_copy(update={"job_manager": self.address})
        settings = {"state_dir": str(self.state_dir), "addresses": addresses.model_dump()}
        section = {"trainer_python": str(self.python), "reconcile_seconds": 0.05, **self.section}
        given = json.dumps({"settings": settings, "section": section})
        self.state_dir.mkdir(exist_ok=True)
        with (self.state_dir / "job_manager.log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", MAIN, given], stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        if self.process is not None:
            os.kill(self.process.pid, number)
            self.process.wait(30)
            self.process = None
