"""A real OpenPBS on this machine, whose nodes are network namespaces, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malletrain.scavenger.acquisition.pbs_answers import argument_element
from malletrain.scavenger.sources.schedulers.pbs_json import read_jobs
from tests.schedulers.batch_cluster import PLACEHOLDER
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "deploy" / "pbs" / "local-cluster.sh"
PREFIX = Path("/opt/pbs")
CPUS = 4
_INTERVALS = {"queue_interval_seconds": 1, "reservations_interval_seconds": 1}
_PLACES = Path("/srv")
"""PBS refuses folders below one that everybody may write."""
_ATTRIBUTES = ("Job_Name", "queue", "job_state", "exec_host", "argument_list", "estimated")


@dataclass(frozen=True)
class PbsCluster:
    """A running one; see `BatchCluster`.

    Attributes:
        folder: All its files.
        nodes: Names of its nodes.
        name: Of its kind.
        head: Address at which the nodes reach this machine.
        interface: By which the nodes reach each other.
        start_seconds: By when a main job must have started behind placeholders.
        gpus: How many GPUs each node claims to have. If not 0, single ones are used, and each node has twice as many
            CPUs.
        prepare: A program that each node runs before its mom.
    """

    folder: Path
    nodes: tuple[str, ...]
    name: str = "pbs"
    head: str = "10.214.0.1"
    interface: str = "eth0"
    start_seconds: float = 30.0
    gpus: int = 0
    prepare: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What its commands, and all that call them, need."""
        path = os.pathsep.join([f"{PREFIX}/bin", f"{PREFIX}/sbin", os.environ["PATH"]])
        return {"PBS_CONF_FILE": str(self.folder / "pbs.conf"), "PATH": path}

    @property
    def source(self) -> dict[str, Any]:
        """The section of the Scavenger, without `hold`."""
        units = {"units": "gpus"} if self.gpus else {}
        return {"queues": ["main"], "interval_seconds": 0.5, **_INTERVALS, **units}

    @property
    def topology(self) -> dict[str, Any]:
        """See `BatchCluster`."""
        return {"topology_resources": ["rack"]}

    def run(self, *command: str, text: str = "", more: dict[str, str] | None = None) -> str:
        """What a command prints.

        Raises:
            AssertionError: it fails.
        """
        environment = os.environ | self.environment | {"LC_ALL": "C"} | (more or {})
        done = subprocess.run(
            command,
            input=text,
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Attributes of all jobs that have not ended."""
        return read_jobs(self.run("qstat", "-f", "-w"), _ATTRIBUTES)

    def placeholders(self) -> dict[str, str]:
        """See `BatchCluster`."""
        return {
            identifier: str(job["exec_host"]).partition("/")[0]
            for identifier, job in self.jobs().items()
            if (job["queue"], job["Job_Name"], job["job_state"]) == ("scavenge", PLACEHOLDER, "R")
        }

    def is_running(self, identifier: str) -> bool:
        """See `BatchCluster`."""
        return self.jobs().get(identifier, {}).get("job_state") == "R"

    def mark_of(self, identifier: str) -> str:
        """See `BatchCluster`: the identifier of the installation, as the agent is told it."""
        words = str(self.jobs()[identifier]["argument_list"]).replace("</jsdl-hpcpa:Argument>", " ")
        return words.replace("<jsdl-hpcpa:Argument>", "").split("--installation ")[1].split()[0]

    def submit_lookalike(self, node: str, queue: str, mark: str = "") -> str:
        """See `BatchCluster`."""
        marked = ["-", "--installation", mark] if mark else []
        arguments = "".join(argument_element(word) for word in ["-c", "sleep 600", *marked])
        how = ["-q", queue, "-N", PLACEHOLDER, "-j", "oe", "-o", "/dev/null", "-l", "walltime=600"]
        place = ["-l", f"select=1:host={node}:ncpus={CPUS}", "-l", "place=exclhost"]
        program = ["-W", "executable=/bin/sh", "-W", f"argument_list={arguments}"]
        return self.run("qsub", *how, *place, *program, text="#!/bin/sh\n").strip()

    def submit_main(self, nodes: int, script: str, **variables: str) -> str:
        """See `BatchCluster`."""
        size = ["-l", f"select={nodes}:ncpus={CPUS}", "-l", "place=scatter:exclhost", "-l", "walltime=60"]
        named = ["-v", ",".join(variables)] if variables else []
        how = ["-q", "main", "-j", "oe", "-o", "/dev/null", *named]
        return self.run("qsub", *how, *size, text=f"#!/bin/bash\n{script}\n", more=variables).strip()

    def set_offline(self, node: str) -> None:
        """See `BatchCluster`."""
        self.run("pbsnodes", "-o", node)

    def set_online(self, node: str) -> None:
        """See `BatchCluster`."""
        self.run("pbsnodes", "-r", node)

    def reserve(self, node: str, delay_seconds: int, seconds: int) -> str:
        """See `BatchCluster`."""
        begin = time.strftime("%Y%m%d%H%M.%S", time.localtime(time.time() + delay_seconds))
        words = ["-R", begin, "-D", str(seconds), "-l", f"select=1:host={node}:ncpus={CPUS}", "-l", "place=exclhost"]
        name = self.run("pbs_rsub", *words).split()[0]
        wait_until(lambda: "reserve_state = RESV_CONFIRMED" in self.run("pbs_rstat", "-f", name), 20, "the reservation")
        return name

    def end_reservation(self, name: str) -> None:
        """See `BatchCluster`."""
        if name in self.run("pbs_rstat", "-f"):
            self.run("pbs_rdel", name)

    def kill_server(self) -> None:
        """See `BatchCluster`. PBS stores each job before it answers."""
        pid = int((self.folder / "home" / "server_priv" / "server.lock").read_text())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _lives(pid), 10, "the end of pbs_server")

    def start_again(self) -> None:
        """See `BatchCluster`."""
        self.control("up")

    def end_job(self, identifier: str) -> None:
        """See `BatchCluster`."""
        self.run("qdel", identifier)

    def end_jobs(self) -> None:
        """See `BatchCluster`. One at a time: several ids made a server crash."""
        for identifier in self.jobs():
            subprocess.run(
                ["qdel", identifier], env=os.environ | self.environment, capture_output=True, timeout=30, check=False
            )
        wait_until(lambda: not self.jobs(), 60, "the end of all jobs")

    def control(self, action: str) -> None:
        """`up` or `down`.

        Raises:
            RuntimeError: it fails; says why.
        """
        size = {"CPUS": str(2 * self.gpus or CPUS), "GPUS": str(self.gpus)}
        if self.prepare:
            size["PREPARE"] = f"sh '{self.prepare}'"
        done = subprocess.run(
            ["bash", str(SCRIPT), action, str(self.folder)],
            env=os.environ | size | {"NODES": str(len(self.nodes)), "WAIT_SECONDS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.folder.parent / f"{self.folder.name}.{action}").open("w"),
            timeout=300,
            check=False,
        )
        if done.returncode:
            said = (self.folder.parent / f"{self.folder.name}.{action}").read_text()
            raise RuntimeError(f"{SCRIPT.name} {action}: {said.strip()}")


def missing() -> str:
    """Why no OpenPBS can be started here; empty where one can."""
    if os.geteuid() != 0:
        return "needs root, for OpenPBS and network namespaces"
    if shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        return "needs root and iproute2"
    if not (PREFIX / "sbin" / "pbs_server.bin").exists():
        return f"needs OpenPBS in {PREFIX}: make test-pbs unpacks it, where its files are"
    return ""


@contextmanager
def pbs_cluster(nodes: int, gpus: int = 0, rack: int = 0, prepare: Path | None = None) -> Iterator[PbsCluster]:
    """Start one; end it, its jobs and its daemons, and remove its files.

    Args:
        nodes: How many moms.
        gpus: How many GPUs each claims to have.
        rack: If not 0, so many nodes have the same value of the resource `rack`.
        prepare: A program that each node runs before its mom, in its namespaces.

    Raises:
        RuntimeError: it does not start; says why.
    """
    place = Path(tempfile.mkdtemp(prefix="malletrain-pbs-", dir=_PLACES))
    place.chmod(0o755)
    running = PbsCluster(
        place / "cluster", tuple(f"p{number:03d}" for number in range(1, nodes + 1)), gpus=gpus, prepare=prepare
    )
    try:
        running.control("up")
        if rack:
            running.run("qmgr", "-c", "create resource rack type=string, flag=h")
        for number, node in enumerate(running.nodes if rack else ()):
            running.run("qmgr", "-c", f"set node {node} resources_available.rack = r{number // rack}")
        yield running
    finally:
        running.control("down")
        shutil.rmtree(place, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
