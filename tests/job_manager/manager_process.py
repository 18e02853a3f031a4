"""JobManager as a process of its own, to be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from malletrain.job_manager.launching import processes
from malletrain.runtime.config import Addresses
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc
from tests.job_manager.serving import Caller, serve_peers
from tests.support.access import CREDENTIAL
from tests.support.channels import plain_channel, stand_in_authority
from tests.support.stand_ins import StandInScavenger

MAIN = """
import asyncio, json, sys
from malletrain.job_manager.service import create
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.logs import configure_logging
from malletrain.runtime.process import run_service
from malletrain.runtime.server import ServiceHost
from tests.support.access import checked, installation

async def main():
    given = json.loads(sys.argv[1])
    settings = Settings(**given["settings"])
    section = JobManagerSettings(**given["section"])
    service = create(settings, section, SystemClock(), installation(settings))
    await run_service(service, ServiceHost(settings.addresses.job_manager, checked(), settings.limits))

configure_logging("job_manager")
asyncio.run(main())
"""


@dataclass
class Process:
    """A JobManager that serves at an address that stays the same over restarts.

    Attributes:
        fault: Python code that it runs first.
        settings: More settings that services share.
    """

    state_dir: Path
    python: Path
    peers: Addresses
    section: dict[str, object] = field(default_factory=dict)
    fault: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"

    def start(self) -> None:
        addresses = self.peers.model_copy(update={"job_manager": self.address})
        settings: dict[str, Any] = {
            "state_dir": str(self.state_dir),
            "addresses": addresses.model_dump(),
            **self.settings,
        }
        settings["tls"] = {"authority_file": str(stand_in_authority())}
        defaults = {"trainer_python": str(self.python), "reconcile_seconds": 0.05, "standby_memory_mib": 0}
        section = {**defaults, **self.section}
        given = json.dumps({"settings": settings, "section": section})
        self.state_dir.mkdir(exist_ok=True)
        with (self.state_dir / "job_manager.log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", self.fault + MAIN, given], stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        if self.process is not None:
            os.kill(self.process.pid, number)
            self.process.wait(30)
            self.process = None


ManagerProcess = tuple[Process, Caller, StandInScavenger]


@contextlib.asynccontextmanager
async def manager_process(
    state_dir: Path, python: Path, fault: str = "", settings: dict[str, str] | None = None, **section: object
) -> AsyncIterator[ManagerProcess]:
    async with serve_peers("n1 n2 n3 n4") as (scavenger, _, addresses):
        process = Process(state_dir, python, addresses, section, fault, settings or {})
        async with plain_channel(process.address, CREDENTIAL) as channel:
            caller = Caller(job_manager_pb2_grpc.JobManagerServiceStub(channel))
            try:
                process.start()
                await serving(caller)
                yield process, caller, scavenger
            finally:
                process.end()
                await processes.sweep(lambda found: found.get("MALLETRAIN_JOB_DIR", "").startswith(str(state_dir)))


async def serving(caller: Caller) -> None:
    """Wait until JobManager answers; the connection to one that was just killed may not have been given up yet."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await caller.stub.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=20, wait_for_ready=True)
                return
            await asyncio.sleep(0.05)


async def planned(caller: Caller, generation: int, **assignments: str) -> None:
    """Apply a plan as soon as JobManager knows the idle nodes."""
    refusals = ["not known yet"]
    async with asyncio.timeout(20):
        while refusals:
            assert "not known yet" in refusals.pop()
            try:
                await caller.plan(generation, **assignments)
            except grpc.aio.AioRpcError as error:
                refusals.append(error.details() or "")
                await asyncio.sleep(0.02)
