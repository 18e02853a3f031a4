"""Workloads: the rigid jobs of a batch queue and the machine that runs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources, ResourceRequest
from malletrain.simulator.batch.machine import MachineSpec, beyond, machine_of, parse_burst_buffer, parse_ssd
from malletrain.simulator.batch.swf import SwfLog, SwfRecord, read_log
from malletrain.simulator.traces.row_counts import RowCounts

_PARTIAL = (2, 3, 4)
_NOTHING_KNOWN = MachineSpec()


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A rigid job of the batch queue.

    Attributes:
        number: Number in the log, not necessarily unique.
        submit_s: Submission in seconds after second 0 of the log.
        nodes: Number of nodes that it needs, at least 1.
        run_s: Run time in seconds, above 0.
        estimate_s: Run time as estimated by its user in seconds, above 0.
        line: Line number in the log, from 1; 0 if it is not from a log.
        burst_buffer_gb: Shared burst buffer that it needs in GB, at least 0.
        ssd_gb: Local SSD that it needs on each node in GB, at least 0.
        after: Numbers of the jobs that have to end before it may start.
    """

    number: int
    submit_s: float
    nodes: int
    run_s: float
    estimate_s: float
    line: int = 0
    burst_buffer_gb: int = 0
    ssd_gb: int = 0
    after: tuple[int, ...] = ()

    @property
    def request(self) -> ResourceRequest:
        """What it asks for."""
        return ResourceRequest(self.nodes, self.burst_buffer_gb, self.ssd_gb)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Numbers of lines of the log that were skipped, by reason.

    Attributes:
        cancelled: Cancelled before they started.
        partial: Parts of a job that has a line of its own (status 2 to 4).
        without_run_time: Run time unknown, or 0: shorter than half a second.
        without_processors: Processors unknown or 0.
        too_large: More nodes, burst buffer or SSD than the machine has.
    """

    cancelled: int = 0
    partial: int = 0
    without_run_time: int = 0
    without_processors: int = 0
    too_large: int = 0


@dataclass(frozen=True)
class BatchWorkload:
    """Jobs and machine.

    Attributes:
        jobs: Jobs in the order of submission; those of one second in the log's order.
        nodes: Nodes of the machine.
        processors_per_node: Processors of a node, by which the log's processors were divided.
        skipped: Lines of the log that were skipped.
        unix_start_s: Second 0 in seconds since the epoch; None if it is not known.
        resources: What the machine has besides nodes; None: only nodes are scheduled.
        measured_s: From which second until which one metrics are measured; None: from the first submission to the last,
            or to the last end where all jobs are submitted at once.

    Raises:
        InvalidInputError: there are no jobs, they are not in order, a size or time is out of its range, or no job is
            submitted in the measured seconds.
    """

    jobs: tuple[BatchJob, ...]
    nodes: int
    processors_per_node: int = 1
    skipped: Skipped = Skipped()
    unix_start_s: int | None = None
    resources: MachineResources | None = None
    measured_s: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.jobs:
            raise InvalidInputError("jobs", "at least one")
        before_s = self.jobs[0].submit_s
        for index, job in enumerate(self.jobs):
            if not 1 <= job.nodes <= self.nodes:
                raise InvalidInputError(f"jobs[{index}].nodes", f"1 to {self.nodes}, what the machine has", job.nodes)
            if not (job.run_s > 0 and job.estimate_s > 0):
                raise InvalidInputError(f"jobs[{index}]", "run_s and estimate_s above 0", job)
            if not job.submit_s >= before_s:
                raise InvalidInputError(f"jobs[{index}].submit_s", f"at least {before_s:g}, as before", job.submit_s)
            before_s = job.submit_s
            excess = beyond(job, self.resources)
            if excess:
                raise InvalidInputError(f"jobs[{index}].{excess[0]}", excess[1], excess[2])
        if self.measured_s is not None:
            first_s, last_s = self.measured_s
            if not any(first_s <= job.submit_s <= last_s for job in self.jobs):
                raise InvalidInputError("measure", "seconds in which jobs are submitted", self.measured_s)


def read_workload(
    path: Path,
    *,
    nodes: int | None = None,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
    spec: MachineSpec = _NOTHING_KNOWN,
    counts: RowCounts | None = None,
) -> BatchWorkload:
    """The jobs in an SWF file; see `workload_of`, and `parse_log` for `counts`.

    Raises:
        InvalidInputError: the file is not SWF, the size of the machine is not known, or a job is larger than it.
    """
    return workload_of(
        read_log(path, counts),
        nodes=nodes,
        processors_per_node=processors_per_node,
        skip_too_large=skip_too_large,
        spec=spec,
    )


def workload_of(
    log: SwfLog,
    *,
    nodes: int | None = None,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
    spec: MachineSpec = _NOTHING_KNOWN,
) -> BatchWorkload:
    """The jobs of a log that ran, and the log's machine.

    A job's size is the requested one, or the allocated one if none was requested. Its estimate is the requested time,
    or its run time.

    Args:
        log: From `read_log`.
        nodes: Nodes of the machine; None: the header's MaxNodes, or its MaxProcs divided by `processors_per_node`.
        processors_per_node: Processors of a node; numbers of nodes are rounded up. None: the header's MaxProcs divided
            by its MaxNodes and rounded up, or 1 if one of them is missing.
        skip_too_large: Whether to skip jobs that are larger than the machine instead of refusing the log.
        spec: Burst buffer, SSDs and measured seconds; the header says what is None.

    Raises:
        InvalidInputError: the size of the machine is not known, a job is larger than it, or no job ran.
    """
    for field, value in (("nodes", nodes), ("processors_per_node", processors_per_node)):
        if value is not None and value < 1:
            raise InvalidInputError(field, "at least 1", value)
    per_node = processors_per_node or _ceil(log.max_processors or 1, log.max_nodes or log.max_processors or 1)
    size = nodes or log.max_nodes or (log.max_processors and _ceil(log.max_processors, per_node))
    if not size:
        raise InvalidInputError(
            "nodes", f"the machine's size, as {log.name} has no MaxNodes nor MaxProcs in its header"
        )
    resources = machine_of(size, _further(log, spec), "ssd" if spec.ssd else f"{log.name}: LocalSSD")
    counts = dict.fromkeys(Skipped.__dataclass_fields__, 0)
    jobs = []
    for record in log.records:
        reason = _unfit(record)
        job = None if reason else _job(record, per_node)
        if job is not None:
            excess = _excess(log.name, record, job, size, resources)
            if excess is not None and not skip_too_large:
                raise excess
            reason = "too_large" if excess else None
        if reason:
            counts[reason] += 1
        elif job is not None:
            jobs.append(job)
    if not jobs:
        raise InvalidInputError(log.name, f"at least one job that ran, among {len(log.records)} lines")
    return BatchWorkload(
        in_order(jobs), size, per_node, Skipped(**counts), log.unix_start_s, resources, spec.measured_s
    )


def workload_of_jobs(
    path: Path, jobs: Iterable[BatchJob], nodes: int, spec: MachineSpec, *, skip_too_large: bool
) -> BatchWorkload:
    """The jobs of a table whose sizes are nodes.

    Args:
        path: The table.
        nodes: Size of the machine in nodes.
        spec: What else is known of the machine.
        skip_too_large: Whether to skip jobs that ask for more than the machine has.

    Raises:
        InvalidInputError: a job is larger than the machine, or none is left.
    """
    resources = machine_of(nodes, spec)
    fitting, too_large = list[BatchJob](), 0
    for job in jobs:
        excess = beyond(job, resources)
        if job.nodes > nodes:
            excess = "nodes", f"at most {nodes} nodes, the size of the machine", job.nodes
        if excess and not skip_too_large:
            raise InvalidInputError(
                f"{path}:{job.line}: {excess[0]}", f"{excess[1]} (or skip jobs that are too large)", excess[2]
            )
        too_large += bool(excess)
        fitting += [] if excess else [job]
    if not fitting:
        raise InvalidInputError(str(path), "at least one job that fits on the machine")
    return BatchWorkload(
        in_order(fitting),
        nodes,
        skipped=Skipped(too_large=too_large),
        resources=resources,
        measured_s=spec.measured_s,
    )


def _further(log: SwfLog, spec: MachineSpec) -> MachineSpec:
    """The machine's further resources: as given, or else as in the header."""
    burst_buffer, ssd = spec.burst_buffer_gb, spec.ssd
    if burst_buffer is None and log.burst_buffer is not None:
        burst_buffer = parse_burst_buffer(log.burst_buffer, f"{log.name}: BurstBuffer")
    if ssd is None and log.local_ssd is not None:
        ssd = parse_ssd(log.local_ssd, f"{log.name}: LocalSSD")
    return MachineSpec(None, burst_buffer, ssd)


def in_order(jobs: Iterable[BatchJob]) -> tuple[BatchJob, ...]:
    """Jobs in the order of submission; those of one second in the order given."""
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _unfit(record: SwfRecord) -> str | None:
    """The reason to skip a line; None if it is a job to run."""
    if record.status in _PARTIAL:
        return "partial"
    if record.run_s <= 0:
        return "cancelled" if record.status == 5 else "without_run_time"
    return "without_processors" if record.requested <= 0 and record.allocated <= 0 else None


def _job(record: SwfRecord, per_node: int) -> BatchJob:
    return BatchJob(
        number=record.number,
        submit_s=record.submit_s,
        nodes=_ceil(record.requested if record.requested > 0 else record.allocated, per_node),
        run_s=record.run_s,
        estimate_s=record.requested_s if record.requested_s > 0 else record.run_s,
        line=record.line,
        burst_buffer_gb=record.burst_buffer_gb,
        ssd_gb=record.ssd_gb,
        after=(record.preceding,) if record.preceding > 0 else (),
    )


def _excess(
    name: str, record: SwfRecord, job: BatchJob, size: int, resources: MachineResources | None
) -> InvalidInputError | None:
    """The error of a job that wants more than the machine has."""
    if job.nodes > size:
        return _too_large(name, record, job, size)
    excess = beyond(job, resources)
    return excess and InvalidInputError(
        f"{name}:{record.line}: {excess[0]}", f"{excess[1]} (or skip jobs that are too large)", excess[2]
    )


def _too_large(name: str, record: SwfRecord, job: BatchJob, size: int) -> InvalidInputError:
    field = "requested" if record.requested > 0 else "allocated"
    return InvalidInputError(
        f"{name}:{record.line}: {field} processors",
        f"at most {size} nodes, the size of the machine (or skip jobs that are too large)",
        job.nodes,
    )
