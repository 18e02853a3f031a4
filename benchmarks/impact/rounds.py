"""One run of the stream of main jobs, with or without us."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.impact.figures import Ran, reclaims, shared_seconds
from benchmarks.impact.harvest import INTERVALS_S, PLACEHOLDER, Harvest, harvest
from benchmarks.impact.queries import count, max_per_interval, read_calls
from benchmarks.impact.stream import MainJob
from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.scavenger.sources.schedulers.hostlists import expand
from tests.slurm.cluster import Cluster
from tests.support.waiting import wait_until

_PATIENCE_S = 300.0
_SETTLE_S = 5.0
_PAUSE_S = 0.1
_STOPPED_S, _GOING_S = 20.0, 20.0


@dataclass(frozen=True)
class Reclaim:
    """A reclaim of one node.

    Attributes:
        node: Name of the node.
        seconds: From SIGTERM at its agent until no process of ours was on the node.
        working: Whether workers were on it.
        stopped: Whether Allocator was stopped.
    """

    node: str
    seconds: float
    working: bool
    stopped: bool


@dataclass(frozen=True)
class Round:
    """What was recorded in a run with us.

    Attributes:
        jobs: Main jobs.
        reclaims: Reclaims of nodes.
        samples: Samples trained.
        node_seconds: During which workers were on nodes.
        idle_cpu: Share of a core that the services use without trainings; None where it was not measured.
        queries: Largest number of queries of each kind within an interval.
        calls: All calls of Slurm's commands, by kind.
        left: Processes and placeholders of ours at the end.
        shared: Node-seconds in which a main job and a process of ours were on one node.
    """

    jobs: tuple[Ran, ...]
    reclaims: tuple[Reclaim, ...]
    samples: int
    idle_cpu: float | None
    queries: dict[str, int]
    calls: Counter[str]
    left: int
    shared: float


def run_stream(cluster: Cluster, stream: Sequence[MainJob], folder: Path) -> tuple[Ran, ...]:
    """Submit each job when it is due, and wait for the last. Jobs record their own start and end."""
    folder.mkdir(parents=True)
    begin = time.time()
    submitted = {}
    for job in stream:
        time.sleep(max(0.0, begin + job.submit_s - time.time()))
        submitted[job.number] = time.time() - begin
        stamp = f"{folder}/{job.number}"
        script = (
            f"LC_ALL=C\necho $EPOCHREALTIME >{stamp}.start\nsleep {job.seconds}\necho $EPOCHREALTIME >{stamp}.end\n"
            f"echo $SLURM_JOB_NODELIST >{stamp}.nodes"
        )
        cluster.submit(job.nodes, script, "--job-name=main")
    wait_until(lambda: not cluster.jobs("main"), _PATIENCE_S, "the end of all main jobs")

    def stamp_of(job: MainJob, which: str) -> float:
        return float((folder / f"{job.number}.{which}").read_text()) - begin

    def ran(job: MainJob) -> Ran:
        names = expand((folder / f"{job.number}.nodes").read_text().strip())
        times = submitted[job.number], stamp_of(job, "start"), stamp_of(job, "end")
        return Ran(job.number, job.nodes, *times, names, begin)

    return tuple(map(ran, stream))


def run_with_us(
    cluster: Cluster,
    stream: Sequence[MainJob],
    folder: Path,
    trainings: int,
    idle_seconds: float = 0.0,
    *,
    stop_allocator: bool = False,
    ssh: Sequence[str] = (),
) -> Round:
    """The same stream, with trainings on the idle nodes.

    Args:
        cluster: A Slurm without jobs.
        stream: The main jobs.
        folder: For all files.
        trainings: Number of trainings, of at most two nodes each.
        idle_seconds: For how long the services are watched before there is any training.
        stop_allocator: Stop Allocator for 20 s, let it go on for 20 s, and so on.
        ssh: Starts agents on nodes that are only watched; without it placeholders hold the nodes.
    """
    idle_cpu = None
    with harvest(folder, cluster, ssh) as running:
        if idle_seconds:
            time.sleep(_SETTLE_S)
            idle_cpu = running.cpu_fraction(idle_seconds)
        for _ in range(trainings):
            running.submit(2)
        running.await_training()
        with Stopping(running.deployment.pids()["allocator"], active=stop_allocator) as stopping:
            jobs = run_stream(cluster, stream, folder / "main")
        samples = running.samples()
        found = _reclaims(running, stopping.was_stopped)
    calls = read_calls(running.calls)
    left = _left(cluster, running)
    shared = shared_seconds(jobs, running.watcher.spans)
    return Round(jobs, found, samples, idle_cpu, max_per_interval(calls, INTERVALS_S), count(calls), left, shared)


def _left(cluster: Cluster, running: Harvest) -> int:
    """Number of processes and placeholders of ours that are left a few seconds after the end."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        processes = [*find_job_processes(running.folder / "state"), *running.watcher.look()]
        found = [*processes, *cluster.jobs(PLACEHOLDER)]
        if not found or time.monotonic() > deadline:
            for entry in found:
                print(f"left: {entry}", file=sys.stderr)
            return len(found)
        time.sleep(_PAUSE_S)


def _reclaims(running: Harvest, was_stopped: Callable[[float], bool]) -> tuple[Reclaim, ...]:
    found = []
    for node, times in running.signals().items():
        for when, seconds in reclaims({node: times}, running.watcher.empty):
            ends = running.watcher.workers.get(node, [])
            working = any(abs(end - when - seconds) < 1e-3 for end in ends)
            found.append(Reclaim(node, seconds, working, was_stopped(when)))
    return tuple(found)


class Stopping:
    """A context in which a process is stopped and continued in turn."""

    def __init__(self, pid: int, *, active: bool) -> None:
        self._pid = pid
        self._active = active
        self._spans: list[tuple[float, float]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def was_stopped(self, when: float) -> bool:
        """Whether it was, at that time in seconds since the epoch."""
        return any(begin <= when < end for begin, end in self._spans)

    def __enter__(self) -> Stopping:
        if self._active:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._active:
            self._thread.join()

    def _work(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself: then it is stopped no more
            while not self._ending.is_set():
                os.kill(self._pid, signal.SIGSTOP)
                begin = time.time()
                self._ending.wait(_STOPPED_S)
                self._spans.append((begin, time.time()))
                os.kill(self._pid, signal.SIGCONT)
                self._ending.wait(_GOING_S)
