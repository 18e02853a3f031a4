"""Following a running system and recording what it does, across restarts of its services."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import grpc

from malletrain.cli.demo.history import History, JobChange, NodeChange
from malletrain.cli.output import state_name
from malletrain.cli.peers import Peers
from malletrain.v1 import allocator_pb2, job_manager_pb2, monitor_pb2, resources_pb2, scavenger_pb2

_RETRY_SECONDS = 0.2
_TRAINING = (resources_pb2.JOB_STATE_RUNNING, resources_pb2.JOB_STATE_RESCALING)
FINAL = (resources_pb2.JOB_STATE_COMPLETED, resources_pb2.JOB_STATE_FAILED, resources_pb2.JOB_STATE_CANCELLED)

MessageT = TypeVar("MessageT")


class Watcher:
    """Keeps the newest picture and the history of nodes, jobs, plans and progress."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.history = History()
        self.idle: dict[str, resources_pb2.Node] = {}
        self.jobs: dict[str, resources_pb2.Job] = {}
        self.progress: dict[str, monitor_pb2.Progress] = {}
        self.plan: allocator_pb2.Plan | None = None
        self.news: list[tuple[float, str]] = []
        self.source_ended = False

    def start(self) -> None:
        """Follow the four streams, each in a thread of its own."""
        peers = self._peers
        streams: tuple[Callable[[], None], ...] = (
            lambda: self._follow(
                lambda: peers.scavenger.WatchNodes(scavenger_pb2.WatchNodesRequest()), self._see_nodes
            ),
            lambda: self._follow(
                lambda: peers.job_manager.WatchJobs(job_manager_pb2.WatchJobsRequest()), self._see_jobs
            ),
            lambda: self._follow(
                lambda: peers.monitor.WatchProgress(monitor_pb2.WatchProgressRequest()), self._see_progress
            ),
            lambda: self._follow(lambda: peers.allocator.WatchPlans(allocator_pb2.WatchPlansRequest()), self._see_plan),
        )
        for stream in streams:
            threading.Thread(target=stream, daemon=True).start()

    def stop(self) -> None:
        """Follow no longer."""
        self._ending.set()

    def all_ended(self, job_ids: Iterable[str]) -> bool:
        """Whether all these jobs are in a final state."""
        with self._lock:
            return all(name in self.jobs and self.jobs[name].state in FINAL for name in job_ids)

    def see_job(self, job: resources_pb2.Job) -> None:
        """Take over a job read from ListJobs: an end that fell into a gap of the stream."""
        with self._lock:
            self._record_job(job)

    def _follow(self, open_stream: Callable[[], Iterable[MessageT]], see: Callable[[MessageT], None]) -> None:
        while not self._ending.is_set():
            try:
                for message in open_stream():
                    with self._lock:
                        see(message)
            except grpc.RpcError:
                # The service is being restarted, or the run is over.
                self._ending.wait(_RETRY_SECONDS)

    def _see_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        now = time.time()
        joined = {node.name: node for node in message.joined}
        gone = self.idle.keys() - joined.keys() if message.snapshot else set(message.left)
        fresh = joined.keys() - self.idle.keys()
        self.idle = {name: node for name, node in self.idle.items() if name not in gone} | joined
        self.source_ended = self.source_ended or message.source_ended
        if fresh or gone:
            self.history.nodes.append(NodeChange(now, frozenset(fresh), frozenset(gone)))
            parts = [f"+{name}" for name in sorted(fresh)] + [f"-{name}" for name in sorted(gone)]
            self.news.append((now, "nodes " + " ".join(parts)))

    def _see_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        for job in message.jobs:
            self._record_job(job)

    def _record_job(self, job: resources_pb2.Job) -> None:
        now = time.time()
        before = self.jobs.get(job.id)
        if before is not None and before.update_time.ToNanoseconds() > job.update_time.ToNanoseconds():
            return
        self.jobs[job.id] = job
        nodes = frozenset(job.confirmed_nodes) if job.state in _TRAINING else frozenset()
        self.history.jobs.append(JobChange(now, job.id, state_name(job.state), nodes))
        if before is None or before.state != job.state:
            self.news.append((now, f"{job.id} {state_name(job.state)}: {job.reason}"))

    def _see_progress(self, message: monitor_pb2.WatchProgressResponse) -> None:
        self.progress.update((entry.job_id, entry) for entry in message.progress)

    def _see_plan(self, message: allocator_pb2.WatchPlansResponse) -> None:
        plan = message.plan
        if self.plan is None or plan.generation > self.plan.generation:
            self.plan = plan
            scales = ", ".join(f"{entry.job_id}: {len(entry.nodes)}" for entry in plan.allocation.assignments)
            fate = "" if plan.applied else f" refused ({plan.refusal})"
            self.news.append((time.time(), f"plan {plan.generation} [{scales}]{fate}"))
