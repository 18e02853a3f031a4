"""Follows a running system and records what it does, across restarts of its services: idle nodes and jobs over time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from malletrain.cli.shared.layout import first_line
from malletrain.cli.shared.output import state_name
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.v1 import allocator_pb2, job_manager_pb2, monitor_pb2, resources_pb2, scavenger_pb2


@dataclass(frozen=True)
class NodeChange:
    """A change of the set of idle nodes.

    Attributes:
        time: Seconds since the epoch.
        joined: Nodes that became idle.
        left: Nodes that are not idle any more.
    """

    time: float
    joined: frozenset[str]
    left: frozenset[str]


@dataclass(frozen=True)
class JobChange:
    """A change of a job.

    Attributes:
        time: Seconds since the epoch.
        job_id: The job.
        state: Its state from then on.
        nodes: The nodes that it trains on from then on.
        wanted: The nodes that the newest plan wants for it.
        held: The nodes that its launcher was told to use, or that its workers are on.
        scales: Permitted scales in nodes.
    """

    time: float
    job_id: str
    state: str
    nodes: frozenset[str]
    wanted: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    scales: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeInterval:
    """A period of one node.

    Attributes:
        start: Beginning in seconds since the epoch.
        end: End in seconds since the epoch.
        label: "idle", or the identifier of the job that trained.
    """

    node: str
    start: float
    end: float
    label: str


@dataclass
class RunHistory:
    """All changes so far; times ascend within each list.

    Attributes:
        nodes: Changes of the idle nodes.
        jobs: Changes of the jobs.
        plans: When plans were applied, in seconds since the epoch.
    """

    nodes: list[NodeChange] = field(default_factory=list)
    jobs: list[JobChange] = field(default_factory=list)
    plans: list[float] = field(default_factory=list)


def idle_intervals(changes: Iterable[NodeChange], end: float) -> list[NodeInterval]:
    """Periods in which each node was idle. Those that have not ended are cut at `end`."""
    since: dict[str, float] = {}
    intervals = []
    for change in changes:
        for node in change.left & since.keys():
            intervals.append(NodeInterval(node, since.pop(node), change.time, "idle"))
        for node in change.joined:
            since.setdefault(node, change.time)
    return intervals + [NodeInterval(node, start, end, "idle") for node, start in since.items()]


def training_intervals(changes: Iterable[JobChange], end: float) -> list[NodeInterval]:
    """Periods in which a job trained on each node. Those that have not ended are cut at `end`."""
    since: dict[tuple[str, str], float] = {}
    intervals = []
    for change in changes:
        for job_id, node in list(since):
            if job_id == change.job_id and node not in change.nodes:
                intervals.append(NodeInterval(node, since.pop((job_id, node)), change.time, job_id))
        for node in change.nodes:
            since.setdefault((change.job_id, node), change.time)
    return intervals + [NodeInterval(node, start, end, job_id) for (job_id, node), start in since.items()]


def node_seconds(intervals: Iterable[NodeInterval]) -> float:
    """Total length of periods in node-seconds."""
    return sum(interval.end - interval.start for interval in intervals)


_RETRY_SECONDS = 0.2
_TRAINING = (resources_pb2.JOB_STATE_RUNNING, resources_pb2.JOB_STATE_RESCALING)

RequestT = TypeVar("RequestT")
MessageT = TypeVar("MessageT")


class RunRecorder:
    """Records nodes, jobs, plans and progress from the services' streams.

    Attributes:
        history: Changes of nodes and jobs.
        idle: Idle nodes by name.
        jobs: Jobs by identifier.
        progress: Progress by job identifier.
        plan: The newest plan; None before the first.
        messages: What has happened, for people: seconds since the epoch and text.
        source_ended: Whether the trace has ended.
    """

    def __init__(self, stubs: ServiceStubs) -> None:
        self._stubs = stubs
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.history = RunHistory()
        self.idle: dict[str, resources_pb2.Node] = {}
        self.jobs: dict[str, resources_pb2.Job] = {}
        self.progress: dict[str, monitor_pb2.Progress] = {}
        self.plan: allocator_pb2.Plan | None = None
        self.messages: list[tuple[float, str]] = []
        self.source_ended = False

    def start(self) -> None:
        """Follow the four streams, each in a thread."""
        scavenger, job_manager = self._stubs.scavenger, self._stubs.job_manager
        monitor, allocator = self._stubs.monitor, self._stubs.allocator
        for follow in (
            lambda: self._follow(scavenger.WatchNodes, scavenger_pb2.WatchNodesRequest(), self._record_nodes),
            lambda: self._follow(job_manager.WatchJobs, job_manager_pb2.WatchJobsRequest(), self._record_jobs),
            lambda: self._follow(monitor.WatchProgress, monitor_pb2.WatchProgressRequest(), self._record_progress),
            lambda: self._follow(allocator.WatchPlans, allocator_pb2.WatchPlansRequest(), self._record_plan),
        ):
            threading.Thread(target=follow, daemon=True).start()

    def stop(self) -> None:
        """Stop following the streams."""
        self._ending.set()

    def all_ended(self, job_ids: Iterable[str]) -> bool:
        """Whether all these jobs are in a final state."""
        with self._lock:
            return all(name in self.jobs and self.jobs[name].state in FINAL_JOB_STATES for name in job_ids)

    def record_job(self, job: resources_pb2.Job) -> None:
        """Record a job read from ListJobs: the stream does not show jobs that ended while it was interrupted."""
        with self._lock:
            self._record_job(job)

    def _follow(
        self,
        open_stream: Callable[[RequestT], Iterable[MessageT]],
        request: RequestT,
        record: Callable[[MessageT], None],
    ) -> None:
        while not self._ending.is_set():
            try:
                for message in open_stream(request):
                    with self._lock:
                        record(message)
            except grpc.RpcError:
                # The service is being restarted, or the run has ended.
                self._ending.wait(_RETRY_SECONDS)

    def _record_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        now = time.time()
        joined = {node.name: node for node in message.joined}
        gone = self.idle.keys() - joined.keys() if message.snapshot else set(message.left)
        fresh = joined.keys() - self.idle.keys()
        self.idle = {name: node for name, node in self.idle.items() if name not in gone} | joined
        self.source_ended = self.source_ended or message.source_ended
        if fresh or gone:
            self.history.nodes.append(NodeChange(now, frozenset(fresh), frozenset(gone)))
            parts = [f"+{name}" for name in sorted(fresh)] + [f"-{name}" for name in sorted(gone)]
            self.messages.append((now, "nodes " + " ".join(parts)))

    def _record_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        for job in message.jobs:
            self._record_job(job)

    def _record_job(self, job: resources_pb2.Job) -> None:
        now = time.time()
        before = self.jobs.get(job.id)
        if before is not None and before.update_time.ToNanoseconds() > job.update_time.ToNanoseconds():
            return
        self.jobs[job.id] = job
        self.history.jobs.append(_change_of(job, now))
        if before is None or before.state != job.state:
            self.messages.append((now, f"{job.id} {state_name(job.state)}: {first_line(job.reason)}"))

    def _record_progress(self, message: monitor_pb2.WatchProgressResponse) -> None:
        self.progress.update((entry.job_id, entry) for entry in message.progress)

    def _record_plan(self, message: allocator_pb2.WatchPlansResponse) -> None:
        plan = message.plan
        if self.plan is None or plan.generation > self.plan.generation:
            self.plan = plan
            if plan.applied:
                self.history.plans.append(time.time())
            scales = ", ".join(f"{entry.job_id}: {len(entry.nodes)}" for entry in plan.allocation.assignments)
            outcome = "" if plan.applied else f" refused ({plan.refusal})"
            self.messages.append((time.time(), f"plan {plan.generation} [{scales}]{outcome}"))


def _change_of(job: resources_pb2.Job, now: float) -> JobChange:
    spec = job.spec
    return JobChange(
        now,
        job.id,
        state_name(job.state),
        frozenset(job.confirmed_nodes if job.state in _TRAINING else ()),
        frozenset(job.wanted_nodes),
        frozenset((*job.commanded_nodes, *job.confirmed_nodes)),
        tuple(spec.permitted_nodes) or tuple(range(spec.min_nodes, spec.max_nodes + 1)),
    )
