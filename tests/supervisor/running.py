"""A real supervisor process with real trainers, driven over its socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from malletrain.common.environment import JOB_ID, NODE
from malletrain.common.processes import find_processes
from malletrain.v1 import supervisor_pb2, supervisor_pb2_grpc
from tests.support.waiting import wait_until

SIZE = 512
"""Samples in the trainer's dataset."""
TRAINER = Path(__file__).with_name("trainer.py")
PATIENCE = 60.0


class Supervised:
    """One job under a supervisor."""

    def __init__(
        self,
        folder: Path,
        process: subprocess.Popen[bytes],
        job_id: str,
        agents: Mapping[str, str] | None = None,
        agent_names: Mapping[str, str] | None = None,
    ) -> None:
        self.agents = dict(agents or {})
        self.agent_names = dict(agent_names or {})
        self.folder = folder
        self.process = process
        self.job_id = job_id
        self.sequence = 1
        self._channel = grpc.insecure_channel(f"unix:{folder}/s")
        self.stub = supervisor_pb2_grpc.SupervisorServiceStub(self._channel)

    def state(self) -> supervisor_pb2.SupervisorState:
        return self.stub.GetState(supervisor_pb2.GetStateRequest(), timeout=10).state

    @property
    def said(self) -> str:
        """The supervisor's log, and the workers' of each host."""
        found = [self.folder / "supervisor.log", *sorted((self.folder / "logs").glob("*.log"))]
        logs = [path for path in found if path.exists()]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in logs)

    def pids(self) -> dict[str, int]:
        return {worker.host: worker.pid for worker in self.state().workers}

    def command(self, *hosts: str, slots: int = 1) -> None:
        """Command hosts without waiting."""
        self.sequence += 1
        told = {host: (self.agents.get(host, ""), self.agent_names.get(host, "")) for host in hosts}
        wanted = [
            supervisor_pb2.Host(name=host, slots=slots, agent=agent, agent_name=name)
            for host, (agent, name) in told.items()
        ]
        request = supervisor_pb2.SetHostsRequest(sequence=self.sequence, hosts=wanted)
        self.stub.SetHosts(request, timeout=10)

    def rescale(self, *hosts: str) -> None:
        """Command hosts and wait until batches of that scale are there."""
        self.command(*hosts)
        self.wait_confirmed()
        self.wait_batch(len(hosts))

    def wait_confirmed(self) -> None:
        wait_until(lambda: self.state().confirmed_sequence >= self.sequence, PATIENCE, f"command {self.sequence}")

    def release(self, *hosts: str, grace: float) -> supervisor_pb2.SupervisorState:
        request = supervisor_pb2.ReleaseHostsRequest(hosts=hosts, grace_seconds=grace)
        return self.stub.ReleaseHosts(request, timeout=30).state

    def stop(self, grace: float, keep: float = 0.0) -> supervisor_pb2.SupervisorState:
        request = supervisor_pb2.StopRequest(grace_seconds=grace, keep_seconds=keep, sequence=self.sequence)
        return self.stub.Stop(request, timeout=30).state

    def lines(self) -> list[dict[str, Any]]:
        """What the trainers have noted, in order of time."""
        found = []
        for path in self.folder.glob("notes-*.jsonl"):
            whole = path.read_text().rpartition("\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return sorted(found, key=lambda line: line["time"])

    def batches(self) -> list[dict[str, Any]]:
        """Rank 0's batches."""
        return [line for line in self.lines() if line["event"] == "batch" and line["rank"] == 0]

    def wait_batch(self, size: int) -> dict[str, Any]:
        """Wait for a batch of that scale that is done from now on."""
        since = time.time()

        def newest() -> dict[str, Any] | None:
            fresh = [batch for batch in self.batches() if batch["time"] > since and batch["size"] == size]
            return fresh[-1] if fresh else None

        return wait_until(newest, PATIENCE, f"a batch of {size} workers")

    def outcome(self) -> dict[str, Any]:
        """How it ended."""
        self.process.wait(PATIENCE)
        found: dict[str, str] = json.loads((self.folder / "outcome.json").read_text())
        return found

    def processes(self, node: str | None = None) -> list[int]:
        """Processes that are marked as this job's workers, on a node or on all."""

        def is_worker(found: Mapping[str, str]) -> bool:
            return found.get(JOB_ID) == self.job_id and NODE in found and node in (None, found[NODE])

        return [process.id.pid for process in find_processes(is_worker)]

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        wait_until(lambda: not self.processes(), 10, "the workers' end")
        self._channel.close()


@contextmanager
def supervised(
    folder: Path,
    *hosts: str,
    command: list[str] | None = None,
    environment: Mapping[str, str] | None = None,
    slots: int = 1,
    backend: str = "horovod",
    agents: Mapping[str, str] | None = None,
    agent_names: Mapping[str, str] | None = None,
    certificate_file: Path | None = None,
    standby_mib: int = 0,
    cold_start: bool = False,
    keep_seconds: float = 0.0,
    restarts_left: int = 3,
) -> Iterator[Supervised]:
    """Start a supervisor on these hosts; those with an agent are not this machine's own.

    It keeps no standby process unless that is asked for: most tests are over before one has booted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job_id = f"test-{os.getpid()}-{time.time_ns()}"
    marks = {
        "MALLETRAIN_JOB_ID": job_id,
        "MALLETRAIN_JOB_DIR": str(folder),
        "MALLETRAIN_MONITOR": "127.0.0.1:9",
        "MALLETRAIN_SLOTS_PER_NODE": str(slots),
        "MALLETRAIN_TARGET_SAMPLES": "0",
    }
    places, names = agents or {}, agent_names or {}
    launch = {
        "job_id": job_id,
        "backend": backend,
        "command": command or [sys.executable, str(TRAINER)],
        "working_directory": str(folder),
        "environment": {**marks, **(environment or {})},
        "slots_per_node": slots,
        "max_nodes": 8,
        "socket": f"{folder}/s",
        "sequence": 1,
        "hosts": [
            {"name": host, "slots": slots, "agent": places.get(host, ""), "agent_name": names.get(host, "")}
            for host in hosts
        ],
        "certificate_file": str(certificate_file or ""),
        "standby_memory_bytes": standby_mib << 20,
        "cold_start": cold_start,
        "keep_seconds": keep_seconds,
        "restarts_left": restarts_left,
    }
    (folder / "launch.json").write_text(json.dumps(launch))
    for stale in ("supervisor.json", "outcome.json"):
        (folder / stale).unlink(missing_ok=True)
    with (folder / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "malletrain.supervisor", str(folder)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    job = Supervised(folder, process, job_id, agents, agent_names)
    try:
        wait_until(lambda: (folder / "supervisor.json").exists() or process.poll() is not None, 30, "the supervisor")
        yield job
    finally:
        job.close()
