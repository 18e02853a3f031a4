"""A real training under services that are exchanged while it runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.job_folder import SUPERVISOR_FILE
from malletrain.common.processes import ProcessId
from malletrain.v1 import job_manager_pb2, resources_pb2, scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, start
from tests.training.accounts import accounts_of, lines_in
from tests.upgrade.versions import Prefix

TRAINER = Path(__file__).parents[1] / "training" / "trainer.py"
PATIENCE = 90.0
_OF_THIS_VERSION = "\n[access]\nreports_without_tls = true\n"
"""As an operator sets it for trainers of release 0.1; that release does not know it."""
_AHEAD = 600
"""Samples after which a training ends once it is told to; all its workers have been told by then."""


@dataclass(frozen=True)
class Processes:
    """The processes of a job: they train on while services come and go.

    Attributes:
        supervisor: Its supervisor.
        workers: Process ids of its workers.
    """

    supervisor: ProcessId
    workers: frozenset[int]


class Training:
    """One job.

    Attributes:
        system: The services. They may be exchanged for others at the same addresses.
        id: Its identifier.
    """

    def __init__(self, system: Deployment, job_id: str) -> None:
        self.system = system
        self.id = job_id
        self._known: tuple[Deployment, ServiceStubs] | None = None

    @property
    def _stubs(self) -> ServiceStubs:
        """Stubs of the services that there are now."""
        if self._known is None or self._known[0] is not self.system:
            self._known = self.system, self.system.stubs
        return self._known[1]

    @property
    def folder(self) -> Path:
        return self.system.folder / "jobs" / self.id

    def job(self) -> resources_pb2.Job:
        """What JobManager tells of it."""
        request = job_manager_pb2.GetJobRequest(job_id=self.id)
        return self._stubs.job_manager.GetJob(request, timeout=PATIENCE, wait_for_ready=True).job

    def drain(self, node: str) -> None:
        """Take a node out of use; none of its processes is left there afterwards."""
        request = scavenger_pb2.DrainNodesRequest(nodes=[node])
        done = self._stubs.scavenger.DrainNodes(request, timeout=PATIENCE, wait_for_ready=True)
        assert list(done.released) == [node]

    def resume(self, node: str) -> None:
        """Use a node again."""
        self._stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=[node]), timeout=PATIENCE)

    def processes(self) -> Processes:
        """Those that run now."""
        told = json.loads((self.folder / SUPERVISOR_FILE).read_text())
        supervisor = ProcessId(told["pid"], told["start_time"])
        assert supervisor.alive()
        return Processes(supervisor, self._workers())

    def _workers(self) -> frozenset[int]:
        started = {line["pid"] for line in lines_in(self.folder) if line["event"] == "start"}
        return frozenset(pid for pid in started if psutil.pid_exists(pid))

    def wait_trains_on(self, nodes: Collection[str]) -> None:
        """Wait until it trains on these nodes, with a worker on each, and JobManager has heard of further samples."""

        def trains() -> bool:
            found = self.job()
            return found.state == resources_pb2.JOB_STATE_RUNNING and set(found.confirmed_nodes) == set(nodes)

        wait_until(trains, PATIENCE, f"a training on {sorted(nodes)}")
        # Samples of the workers before may still be on their way, and the others' first line comes after that of one.
        wait_until(lambda: len(self._workers()) == len(nodes), PATIENCE, f"{len(nodes)} workers")
        before, noted = self.job().samples, self._batches()
        wait_until(lambda: self.job().samples > before, PATIENCE, "more samples")
        wait_until(lambda: self._batches() > noted, PATIENCE, "more batches")

    def _batches(self) -> int:
        return sum(line["event"] == "batch" for line in lines_in(self.folder))

    def end(self, *, repeats: bool = False, by_steps: bool = False) -> None:
        """Let the training come to its end: completed, without a restart, and every sample trained on.

        Args:
            repeats: Whether samples may have been lost with a worker, and done again, before that.
            by_steps: Whether it has trained as release 0.1 does, whose schedulers go on by one with each step.
        """
        newest = max(line["before"] for line in lines_in(self.folder) if line["event"] == "batch")
        draft = self.folder / "wanted.draft"
        draft.write_text(str(newest + _AHEAD))
        draft.rename(self.folder / "wanted")
        wait_until(lambda: self.job().end_time.seconds, PATIENCE, "the end of the training")
        found: dict[str, Any] = self.system.json("job", self.id)
        assert found["state"].removeprefix("JOB_STATE_") == "COMPLETED", found["reason"]
        story = [event["reason"] for event in found["events"]]
        assert found["restarts"] == 0, story
        accounts = accounts_of(self.folder)
        accounts.check_epochs()
        accounts.check_state(by_steps=by_steps)
        assert repeats or accounts.repeated == []
        assert accounts.samples == int(found["samples"]) >= newest + _AHEAD
        assert repeats or int(found["progress"]["samplesLost"]) == 0


def submit(system: Deployment, backend: str, most: int = 3) -> Training:
    """Submit a training."""
    scale = ["--min", "1", "--max", str(most), "--curve", "1:100,2:190,3:270", "--profile", "never"]
    costs = ["--scale-up", "1", "--scale-down", "1", "--max-restarts", "0"]
    done = system.command("submit", "--backend", backend, *scale, *costs, "--", "python", str(TRAINER))
    assert done.returncode == 0, done.stderr
    return Training(system, done.stdout.strip())


def start_services(folder: Path, prefix: Prefix) -> Deployment:
    """Start the services of a version on a state folder, and wait until they answer."""
    adapt_settings(folder, prefix)
    system = replace(start(folder, python=prefix.python), of_release_0_1=prefix.of_release_0_1)
    wait_until(system.serves, PATIENCE, "all services serving")
    return system


def adapt_settings(folder: Path, prefix: Prefix) -> None:
    """Have the settings that a version needs, as an operator would."""
    config = folder / "malletrain.toml"
    text = config.read_text().replace(_OF_THIS_VERSION, "")
    config.write_text(text if prefix.of_release_0_1 else text + _OF_THIS_VERSION)


def kill_services(system: Deployment) -> None:
    """Kill the services and what would start them again."""
    pids = system.pids()
    system.process.kill()
    system.process.wait()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids.values()), 10, "the end of the services")


def end_services(system: Deployment) -> None:
    """End the services in good order."""
    system.process.send_signal(signal.SIGTERM)
    assert system.process.wait(60) == 0, (system.folder / "up.log").read_text()


def clean_up(folder: Path) -> None:
    """Leave no process of a test: neither services nor agents, nor processes of jobs."""
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("MALLETRAIN_JOB_DIR", ""), process.cwd()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(word.startswith(str(folder)) for word in words):
            process.kill()
