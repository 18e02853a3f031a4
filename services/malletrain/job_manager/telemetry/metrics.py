"""Metrics of JobManager: its jobs, how fast nodes are given back, and what idle nodes are used for."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.job_manager.machine.stimuli import ProgressNoted, Stimulus, SupervisorSeen
from malletrain.job_manager.telemetry.measurements import measure
from malletrain.job_manager.telemetry.node_use import NodeTime, UseCounter, moved_nodes
from malletrain.model.job_state import JobState
from malletrain.model.node_use import NodeUse
from malletrain.runtime.clock import Clock
from malletrain.runtime.metrics.rows import JobRow, limit_rows
from malletrain.runtime.metrics.service_metrics import ServiceMetrics

_RELEASE_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_CHANGE_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_WAIT_BUCKETS_S = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 7 * 86400.0)
_APPLY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


_JOB = ("job_id", "owner")
_SCALES = ("wanted", "commanded", "confirmed", "occupied")
_COUNTS = {
    "restarts": "Starts of a job after a failure.",
    "rescales": "Rescales of a job.",
    "preemptions": "Times that the main scheduler took nodes from a job.",
    "samples": "Samples that a job has processed, net of those that were lost.",
    "target_samples": "Samples that jobs with a target were submitted for; 0 without a target.",
    "stalled": "1 while Monitor calls a job stalled.",
}


@dataclass(frozen=True)
class ManagerSnapshot:
    """Values of the gauges at a scrape.

    Attributes:
        state: What JobManager knows.
        now: Seconds since the epoch.
        node_seconds: Node-seconds so far, by use.
        occupied: Nodes with live workers by job, as its supervisor says.
    """

    state: ManagerState = field(default_factory=ManagerState)
    now: float = 0.0
    node_seconds: Mapping[NodeUse, float] = field(default_factory=lambda: dict.fromkeys(NodeUse, 0.0))
    occupied: Mapping[str, int] = field(default_factory=dict)


class JobManagerMetrics:
    """The metrics of one JobManager. The engine tells it of each transaction."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._node_time = NodeTime(clock.monotonic())
        self._uses = UseCounter()
        self._occupied: dict[str, int] = {}
        self._failures: dict[tuple[str, int], int] = {}
        self._submitted = _counter("jobs_submitted", "Jobs that were submitted.")
        self._ended = _counter("jobs_ended", "Jobs that have ended, by their final state.", "state")
        self._preemptions = _counter("preemptions", "Times that the main scheduler took nodes from a job.")
        self._restarts = _counter("restarts", "Starts of jobs after a failure.")
        self._worker_failures = _counter("worker_failures", "Workers that failed by themselves, as supervisors say.")
        self._rescales = _counter("rescales", "Rescales by cause: plan or preemption.", "cause")
        self._release = _histogram(
            "node_release_seconds",
            "From when the main scheduler took a node until no process of ours was left there.",
            _RELEASE_BUCKETS_S,
        )
        self._change = _histogram(
            "scale_change_seconds",
            "From the command of a start or a rescale until all workers have confirmed it.",
            _CHANGE_BUCKETS_S,
            "kind",
        )
        self._wait = _histogram("queue_wait_seconds", "From submission to the first start.", _WAIT_BUCKETS_S)
        self._apply = _histogram(
            "apply_seconds", "How long a change of the state took, not stored yet.", _APPLY_BUCKETS_S
        )
        for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
            self._ended.labels(state.value.lower())
        for cause in ("plan", "preemption"):
            self._rescales.labels(cause)
        for kind in ("start", "rescale"):
            self._change.labels(kind)

    def register(self, metrics: ServiceMetrics, state: Callable[[], ManagerState]) -> None:
        """Add them to those of the service; the state is asked for at each scrape.

        Raises:
            RuntimeError: no event loop is running.
        """
        metrics.add(
            *(self._submitted, self._ended, self._preemptions, self._restarts, self._worker_failures, self._rescales),
            *(self._release, self._change, self._wait, self._apply),
        )

        def snapshot() -> ManagerSnapshot:
            seconds = self._node_time.at(self._clock.monotonic())
            return ManagerSnapshot(state(), self._clock.time(), seconds, dict(self._occupied))

        def rendered(present: ManagerSnapshot) -> Iterator[Metric]:
            yield from _render(present)
            yield from job_families(present.state, present.occupied, metrics.max_jobs)

        metrics.watch(snapshot, rendered, ManagerSnapshot())

    def note_applied(self, stimulus: Stimulus, before: ManagerState, result: TransactionResult, seconds: float) -> None:
        """A stimulus was applied.

        Args:
            before: The state before.
            result: What came out.
            seconds: How long it took.
        """
        if isinstance(stimulus, SupervisorSeen):
            self._see(stimulus, result.state)
        if not result.changed and not result.events and result.state.idle is before.idle:
            return
        self._apply.observe(seconds)
        if isinstance(stimulus, ProgressNoted):
            return  # samples count nowhere here
        self._uses.change(result.state, result.changed, moved_nodes(stimulus, before, result.state))
        self._node_time.change(self._uses.uses(result.state), self._clock.monotonic())
        measured = measure(before, result, self._clock.time())
        self._submitted.inc(measured.submitted)
        self._preemptions.inc(measured.preemptions)
        self._restarts.inc(measured.restarts)
        for state, count in measured.ended.items():
            self._ended.labels(state.value.lower()).inc(count)
        for cause, count in measured.rescales.items():
            self._rescales.labels(cause).inc(count)
        for kind, passed in measured.scale_changes:
            self._change.labels(kind).observe(passed)
        for passed in measured.queue_waits:
            self._wait.observe(passed)
        for passed in measured.releases:
            self._release.observe(passed)
        for job in result.changed:
            if not job.supervised:
                self._occupied.pop(job.id, None)
            if not job.has_supervisor:
                self._failures = {key: total for key, total in self._failures.items() if key[0] != job.id}

    def _see(self, seen: SupervisorSeen, state: ManagerState) -> None:
        job = state.jobs.get(seen.job_id)
        if job is None or not job.supervised or job.incarnation != seen.incarnation:
            return
        self._occupied[seen.job_id] = len(seen.occupied)
        key, total = (seen.job_id, seen.incarnation), sum(count for _, count in seen.failures)
        self._worker_failures.inc(max(0, total - self._failures.get(key, 0)))
        self._failures[key] = total


def _counter(name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"malletrain_job_manager_{name}", meaning, labels, registry=None)


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"malletrain_job_manager_{name}", meaning, labels, buckets=buckets, registry=None)


def _render(snapshot: ManagerSnapshot) -> Iterator[Metric]:
    jobs = snapshot.state.jobs.values()
    by_state = Tally(job.state for job in jobs)
    states = GaugeMetricFamily("malletrain_job_manager_jobs", "Jobs that have not ended, by state.", labels=["state"])
    for state in JobState:
        if not state.final:
            states.add_metric([state.value.lower()], by_state[state])
    yield states
    yield GaugeMetricFamily(
        "malletrain_job_manager_stalled_jobs",
        "Jobs that Monitor calls stalled.",
        sum(job.stalled_since is not None for job in jobs),
    )
    yield GaugeMetricFamily(
        "malletrain_job_manager_plan_generation", "Generation of the plan in force.", snapshot.state.generation
    )
    releases: dict[str, float] = {}
    for release in (release for job in jobs for release in job.releases if release.left):
        node = node_of(release.node)
        releases[node] = min(release.since, releases.get(node, release.since))
    yield GaugeMetricFamily(
        "malletrain_job_manager_nodes_in_release",
        "Nodes that the main scheduler has taken and on which processes of ours may be left.",
        len(releases),
    )
    yield GaugeMetricFamily(
        "malletrain_job_manager_oldest_release_age_seconds",
        "How long ago the first of these nodes was taken; 0 without any.",
        max((max(0.0, snapshot.now - since) for since in releases.values()), default=0.0),
    )
    use = CounterMetricFamily(
        "malletrain_job_manager_node_seconds",
        "Node-seconds that the main scheduler has offered, by use: training, booting (workers start or join), stalled "
        "(Monitor says so), stopping, or unassigned.",
        labels=["use"],
    )
    for kind, seconds in snapshot.node_seconds.items():
        use.add_metric([kind.value], seconds)
    yield use


def job_families(state: ManagerState, occupied: Mapping[str, int], max_rows: int) -> Iterator[Metric]:
    """One row for each admitted job, those with most nodes first; a last one for all that are too many.

    Args:
        state: What JobManager knows.
        occupied: Nodes with live workers by job.
        max_rows: Most jobs with rows of their own.
    """
    admitted = [job for job in state.jobs.values() if job.admitted]
    ordered = sorted(admitted, key=lambda job: (-len(job.held), job.number))
    rows = list(limit_rows([_row(job, occupied.get(job.id, 0)) for job in ordered], max_rows))
    scales = GaugeMetricFamily(
        "malletrain_job_manager_job_nodes",
        "Nodes of a job, or GPUs of a member of a fleet: wanted by the plan, commanded, confirmed by its workers, or "
        "occupied by live workers.",
        labels=(*_JOB, "kind"),
    )
    counts = {
        name: GaugeMetricFamily(f"malletrain_job_manager_job_{name}", meaning, labels=_JOB)
        for name, meaning in _COUNTS.items()
    }
    for row in rows:
        values = iter(row.values)
        for kind in _SCALES:
            scales.add_metric([row.job_id, row.owner, kind], next(values))
        for family in counts.values():
            family.add_metric([row.job_id, row.owner], next(values))
    yield from (scales, *counts.values())


def _row(job: Job, occupied: int) -> JobRow:
    nodes = (len(job.wanted), len(job.commanded), len(job.confirmed), occupied)
    counts = (job.restarts, job.rescales, job.preemptions, job.samples, job.spec.target_samples)
    return JobRow(job.id, (*nodes, *counts, float(job.stalled_since is not None)), job.owner)
