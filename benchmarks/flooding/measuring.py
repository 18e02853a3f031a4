"""How services answer somebody else meanwhile, and what they take of memory."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import grpc
import psutil

from benchmarks.footprint import pss_mib
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.v1 import job_manager_pb2, scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment

NODE = "n1"
_CALL_SECONDS = 30.0
_GET_PAUSE_SECONDS = 0.02
_MEMORY_PAUSE_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0


@dataclass
class Seen:
    """What was measured over a time.

    Attributes:
        get: Seconds of each GetJob.
        release: Seconds from the leave of a node with a worker to the confirmation that it is free.
        failed: Calls that failed.
        peaks: Largest memory of each service, in MiB.
    """

    get: list[float] = field(default_factory=list)
    release: list[float] = field(default_factory=list)
    failed: int = 0
    peaks: dict[str, float] = field(default_factory=dict)


def median_ms(seconds: list[float]) -> float:
    """In milliseconds; NaN of none."""
    return 1000 * statistics.median(seconds) if seconds else float("nan")


def p99_ms(seconds: list[float]) -> float:
    """99th percentile in milliseconds, of less than a hundred the largest; NaN of none."""
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))] if seconds else float("nan")


def memory_of(system: Deployment) -> dict[str, float]:
    """PSS of each service in MiB."""
    found = {name: pss_mib(psutil.Process(pid)) for name, pid in system.pids().items()}
    return {name: size for name, size in found.items() if size is not None}


def has_node(stubs: ServiceStubs, job_id: str) -> bool:
    """Whether the job has a worker on the node that is taken and given back."""
    job = stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=_CALL_SECONDS).job
    return NODE in job.confirmed_nodes


@contextmanager
def measured(system: Deployment, job_id: str) -> Iterator[Seen]:
    """Measure until the block is left."""
    seen, over = Seen(), threading.Event()
    lock = threading.Lock()

    def repeat(what: Callable[[ServiceStubs], None]) -> None:
        with closing(system.stubs) as stubs:
            while not over.is_set():
                try:
                    what(stubs)
                except (grpc.RpcError, AssertionError):
                    with lock:
                        seen.failed += 1

    def get(stubs: ServiceStubs) -> None:
        began = time.perf_counter()
        stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=_CALL_SECONDS)
        seen.get.append(time.perf_counter() - began)
        over.wait(_GET_PAUSE_SECONDS)

    def release(stubs: ServiceStubs) -> None:
        wait_until(lambda: over.is_set() or has_node(stubs, job_id), _PATIENCE_SECONDS, "a worker on the node")
        if over.is_set():
            return
        began = time.perf_counter()
        answer = stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(nodes=[NODE]), timeout=_CALL_SECONDS)
        took = time.perf_counter() - began
        stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=[NODE]), timeout=_CALL_SECONDS)
        if list(answer.released) == [NODE]:
            seen.release.append(took)
        else:
            seen.failed += 1

    def look(_: ServiceStubs) -> None:
        for name, size in memory_of(system).items():
            seen.peaks[name] = max(size, seen.peaks.get(name, 0.0))
        over.wait(_MEMORY_PAUSE_SECONDS)

    threads = [threading.Thread(target=repeat, args=(what,)) for what in (get, release, look)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()
        with contextlib.closing(system.stubs) as stubs:
            stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(all=True), timeout=_CALL_SECONDS)
