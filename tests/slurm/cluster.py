"""A real Slurm on this machine, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "local-cluster.sh"
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
_MANY_TRIES = 200
_CHANGE = "change"
"""Name of a job that only changes what slurmctld stores."""


@dataclass(frozen=True)
class Cluster:
    """A running one.

    Attributes:
        folder: All its files.
        nodes: Names of its nodes.
        base_port: Where slurmctld listens; the nodes are on the ports after it.
        prolog: What a node runs before a job, if anything.
        gpu_nodes: So many of the last nodes claim to have two GPUs each, and are the partition `gpu`.
        shared_gpus: If not 0, they have so many GPUs instead, twice as many CPUs, and jobs take parts of them.
        rack: If not 0, so many nodes are at a switch of their own.
    """

    folder: Path
    nodes: tuple[str, ...]
    base_port: int
    prolog: Path | None = None
    gpu_nodes: int = 0
    shared_gpus: int = 0
    rack: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """What its commands, and all that call them, need."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def release(self) -> tuple[int, ...]:
        """Of Slurm, e.g. (22, 5)."""
        return tuple(int(part) for part in self.run("sinfo", "--version").split()[-1].split(".")[:2])

    def run(self, *command: str, text: str = "", timeout: float = 30.0) -> str:
        """What a command prints.

        Raises:
            AssertionError: it fails.
        """
        done = subprocess.run(
            command,
            input=text,
            env=os.environ | self.environment | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, nodes: int, script: str, *options: str) -> str:
        """Hand in a job of the main partition; returns its identifier."""
        argv = ["sbatch", "--parsable", "--partition=main", f"--nodes={nodes}", "--time=1", "--output=/dev/null"]
        answer = self.run(*argv, *options, text=f"#!/bin/bash\n{script}\n")
        return answer.strip()

    def jobs(self, name: str = "") -> list[tuple[str, str, tuple[str, ...]]]:
        """Identifier, state and nodes of jobs that are pending, running or completing (of a name), sorted."""
        chosen = [f"--name={name}"] if name else []
        lines = self.run("squeue", "--noheader", *chosen, "--format=%i|%T|%N").splitlines()
        found = [line.strip().split("|") for line in lines]
        return sorted((words[0], words[1], self.names(words[2])) for words in found)

    def names(self, expression: str) -> tuple[str, ...]:
        """The nodes of a list such as n[001-004]."""
        return tuple(self.run("scontrol", "show", "hostnames", expression).split()) if expression else ()

    def await_stored(self) -> None:
        """Wait until slurmctld has stored all jobs as they are now, which it does some seconds after a change."""
        held = ["--hold", "--partition=main", f"--job-name={_CHANGE}", "--output=/dev/null", "--wrap=true"]
        moment = time.time()  # before: a change after a quiet time is stored at once
        self.run("sbatch", *held)
        stored = self.folder / "state" / "job_state"
        wait_until(lambda: stored.exists() and stored.stat().st_mtime > moment, 30, "the stored state of slurmctld")
        self.run("scancel", f"--name={_CHANGE}")

    def kill_controller(self) -> None:
        """kill -9 of slurmctld."""
        pid = int((self.folder / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10, "the end of slurmctld")

    def start_again(self) -> None:
        """Start what has ended. Nodes may answer later: who kills a daemon waits for what it is about."""
        self.control("up", wait_nodes=0)
        self.run("scancel", f"--name={_CHANGE}")

    def control(self, action: str, wait_nodes: int | None = None) -> None:
        variables = {"NODES": len(self.nodes), "BASE_PORT": self.base_port, "WAIT_SECONDS": 120, "BACKFILL_SECONDS": 1}
        variables |= {"GPU_NODES": self.gpu_nodes, "RACK": self.rack}
        if self.shared_gpus:
            variables |= {"GPUS": self.shared_gpus, "CPUS": 2 * self.shared_gpus, "SHARED_GPU_NODES": 1}
        variables["WAIT_NODES"] = len(self.nodes) if wait_nodes is None else wait_nodes
        prolog = {"PROLOG": str(self.prolog)} if self.prolog else {}
        done = subprocess.run(
            ["bash", str(SCRIPT), action, str(self.folder)],
            env=os.environ | {name: str(value) for name, value in variables.items()} | prolog,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{SCRIPT.name} {action}: {done.stderr.strip()}")


def missing() -> str:
    """Why no Slurm can be started here; empty where one can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    absent = [name for name in NEEDED if shutil.which(name, path=path) is None]
    return f"needs Debian's slurmctld, slurmd, slurm-client, munge: no {', '.join(absent)}" if absent else ""


@contextmanager
def cluster(
    folder: Path, nodes: int, prolog: Path | None = None, gpu_nodes: int = 0, shared_gpus: int = 0, rack: int = 0
) -> Iterator[Cluster]:
    """Start one on free ports; end it, its jobs and its daemons.

    Args:
        folder: For all files.
        nodes: How many slurmd.
        prolog: What a node runs before a job, if anything.
        gpu_nodes: How many of them claim to have two GPUs each, and are the partition `gpu`.
        shared_gpus: If not 0, they have so many GPUs instead, and jobs take parts of them.
        rack: If not 0, so many nodes are at a switch of their own, and all switches at another one.

    Raises:
        RuntimeError: it does not start; says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = tuple(f"n{number:03d}" for number in range(1, nodes + 1))
    running = Cluster(folder, names, _free_range(nodes + 1), prolog, gpu_nodes, shared_gpus, rack)
    try:
        running.control("up")
        yield running
    finally:
        running.control("down")


def _free_range(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    begin = 20_000 + os.getpid() % 8000
    for base in range(begin, begin + _MANY_TRIES * count, count):
        if all(_is_free(port) for port in range(base, base + count)):
            return base
    raise RuntimeError(f"no {count} free ports in a row from {begin}")


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
