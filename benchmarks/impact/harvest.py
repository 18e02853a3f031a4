"""MalleTrain on a real Slurm, and what is recorded about it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc
import psutil

from benchmarks.impact.queries import write_wrappers
from benchmarks.impact.watch import Watcher
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.slurm.cluster import Cluster
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

PLACEHOLDER = "malletrain"
QUEUE = "scavenge"
MARKS = "marks"
"""Folder of a cluster in which its Prolog marks nodes."""
NODES_INTERVAL_S = 1.0
INTERVALS_S = {"nodes": NODES_INTERVAL_S, "queue": 2.0, "placeholders": 5.0, "reservations": 30.0}
"""Intervals of each kind of query. Times are scaled down with the main jobs."""
TRAINER = Path(__file__).parent / "trainer.py"
_PROLOG = Path(__file__).parents[2] / "deploy" / "slurm" / "prolog.sh"
_ENDED = (resources_pb2.JOB_STATE_COMPLETED, resources_pb2.JOB_STATE_FAILED, resources_pb2.JOB_STATE_CANCELLED)
_NICE = 10
_CALL_S = 10.0
_PATIENCE_S = 180.0
_LEAVING_S = 30.0
_SAID = re.compile(r"(\S+) malletrain\.agent: node (\S+) is wanted back")
_SETTINGS = """
[scavenger]
source = "slurm"
debounce_seconds = 2
[scavenger.slurm]
partitions = {partitions}
units = "{units}"
interval_seconds = {nodes}
queue_interval_seconds = {queue}
reservations_interval_seconds = {reservations}
[scavenger.slurm.hold]
{how}
agents_address = "127.0.0.1:{port}"
python = "{bin}/python"
log = "{agents}/{log}"
calm_seconds = 5
surplus_seconds = 10
"""


@dataclass(frozen=True)
class Harvest:
    """A running system that uses the nodes that Slurm leaves idle.

    Attributes:
        folder: Its files.
        deployment: Its services.
        watcher: Observes its processes on the nodes.
    """

    folder: Path
    deployment: Deployment
    watcher: Watcher

    @property
    def calls(self) -> Path:
        """File in which each call of Slurm's commands is recorded."""
        return self.folder / "calls"

    def submit(self, max_nodes: int, trainer: Path = TRAINER, *variables: str, least: int = 1) -> None:
        """Submit a training whose curve is declared: there is no time to measure it."""
        curve = ",".join(f"{nodes}:{100 * nodes**0.9:.0f}" for nodes in range(1, max_nodes + 1))
        sizes = ["--min", str(least), "--max", str(max_nodes), "--curve", curve, "--scale-up", "3", "--scale-down", "1"]
        environment = [word for variable in variables for word in ("--env", variable)]
        words = ["submit", *sizes, *environment, "--", sys.executable, str(trainer)]
        done = self.deployment.command(*words, timeout=_PATIENCE_S)
        assert done.returncode == 0, done.stderr

    def jobs(self) -> list[resources_pb2.Job]:
        """All trainings."""
        stubs = self.deployment.stubs
        try:
            return list(stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=_CALL_S).jobs)
        finally:
            stubs.close()

    def samples(self) -> int:
        """Of all trainings."""
        return sum(job.samples for job in self.jobs())

    def await_training(self) -> None:
        """Wait until samples come in."""
        wait_until(lambda: self.samples() > 0, _PATIENCE_S, "a training")

    def cancel(self, *names: str) -> None:
        """Cancel some trainings, or all. Nodes without work are given back."""
        stubs = self.deployment.stubs
        try:
            jobs = stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=_CALL_S).jobs
            for name in names or [job.id for job in jobs]:
                try:
                    stubs.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=name), timeout=_CALL_S)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:  # it has ended
                        raise
        finally:
            stubs.close()

    def cpu_fraction(self, seconds: float) -> float:
        """Share of a core that the five services and their children use."""
        processes = [psutil.Process(pid) for pid in self.deployment.pids().values()]
        before, begin = sum(map(_cpu_seconds, processes)), time.monotonic()
        time.sleep(seconds)
        return (sum(map(_cpu_seconds, processes)) - before) / (time.monotonic() - begin)

    def signals(self) -> dict[str, list[float]]:
        """By node: when its agents got SIGTERM, in seconds since the epoch."""
        found: dict[str, list[float]] = {}
        for path in (self.folder / "agents").glob("*.log"):
            for when, node in _SAID.findall(path.read_text(errors="replace")):
                found.setdefault(node, []).append(datetime.fromisoformat(when).timestamp())
        return found


def write_prolog(folder: Path) -> Path:
    """Write our Prolog with its own configuration, for a cluster that has its files in this folder."""
    folder.mkdir(parents=True)
    config, script = folder / "prolog.conf", folder / "prolog"
    config.write_text(f"MALLETRAIN_MARKS='{folder / MARKS}'\n")
    script.write_text(f"#!/bin/bash\nMALLETRAIN_PROLOG_CONFIG='{config}' exec '{_PROLOG}'\n")
    script.chmod(0o755)
    return script


@contextmanager
def harvest(
    folder: Path,
    cluster: Cluster,
    ssh: Sequence[str] = (),
    partitions: Sequence[str] = ("main",),
    interpreter: str = sys.executable,
    more_settings: str = "",
    units: str = "nodes",
) -> Iterator[Harvest]:
    """Start the services; in the end, give all nodes back.

    Args:
        folder: For all files.
        cluster: The Slurm to harvest.
        ssh: Starts agents on nodes that are only watched; without it placeholders hold the nodes.
        partitions: Whose idle nodes are used.
        interpreter: Python of the agents.
        units: `nodes`, or `gpus` for single ones.
        more_settings: Sections of settings, in TOML, besides that of the Scavenger.
    """
    scripts, agents = folder / "bin", folder / "agents"
    agents.mkdir(parents=True)
    write_wrappers(scripts, folder / "calls")
    # Nodes are played by this machine, whose cores Slurm's daemons need: our processes get the lower priority.
    python = scripts / "python"
    python.write_text(f'#!/bin/bash\nexec nice -n {_NICE} {interpreter} "$@"\n')
    python.chmod(0o755)
    direct = f'ssh = {json.dumps(ssh)}\nmarks = "{cluster.folder / MARKS}"', "all.log"
    how, log = direct if ssh else (f'queue = "{QUEUE}"', "%N-%j.log")
    places = {"bin": scripts, "agents": agents, "log": log, "port": cluster.base_port - 1}
    settings = _SETTINGS.format(how=how, units=units, partitions=json.dumps(partitions), **places, **INTERVALS_S)
    settings += more_settings
    watcher = Watcher(PLACEHOLDER, cluster.environment["SLURM_CONF"], folder)
    try:
        with _services(folder / "state", settings, scripts, cluster) as deployment:
            running = Harvest(folder, deployment, watcher)
            try:
                yield running
            finally:
                running.cancel()
                wait_until(lambda: all(job.state in _ENDED for job in running.jobs()), _LEAVING_S, "all trainings' end")
                wait_until(lambda: not cluster.jobs(PLACEHOLDER), _LEAVING_S, "the end of all placeholders")
                wait_until(lambda: not watcher.look(), _LEAVING_S, "the end of all agents")
    finally:
        watcher.close()


@contextmanager
def _services(folder: Path, settings: str, scripts: Path, cluster: Cluster) -> Iterator[Deployment]:
    """The five services, which find their commands in `scripts`."""
    before = dict(os.environ)
    os.environ.update(cluster.environment, PATH=f"{scripts}:{before['PATH']}")
    try:
        starting = deployed(folder, settings, seconds=180.0)
        deployment = starting.__enter__()
    finally:
        os.environ.clear()
        os.environ.update(before)
    with ExitStack() as stack:
        stack.push(starting)
        yield deployment


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
