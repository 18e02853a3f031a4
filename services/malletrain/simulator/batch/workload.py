"""The jobs that a machine is to run, and the machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.swf import Log, Record

_PARTIAL = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A rigid job of the batch queue.

    Attributes:
        number: The log's number for it; logs do not promise that it is unique.
        submit_s: Submission, seconds after the log's second 0.
        nodes: How many nodes it needs, at least 1.
        run_s: How long it computes, seconds, above 0.
        estimate_s: How long its user says that it will, seconds, above 0.
        line: Where it stands in the log, from 1; 0 if in none.
    """

    number: int
    submit_s: float
    nodes: int
    run_s: float
    estimate_s: float
    line: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """Lines of the log that are no job to run, by reason.

    Attributes:
        cancelled: Cancelled before they started.
        partial: Parts of a job that another line tells of as a whole (status 2 to 4).
        without_run_time: Run time unknown, or 0: shorter than half a second.
        without_processors: Processors unknown or 0.
        too_large: More nodes than the machine has.
    """

    cancelled: int = 0
    partial: int = 0
    without_run_time: int = 0
    without_processors: int = 0
    too_large: int = 0


@dataclass(frozen=True)
class Workload:
    """What to simulate.

    Attributes:
        jobs: In order of submission; those of one second in the log's order.
        nodes: Nodes of the machine.
        processors_per_node: With which processors became nodes.
        skipped: What the log has beside the jobs.
        unix_start_s: Second 0 in seconds since the epoch, if known.

    Raises:
        InvalidInputError: there are no jobs, they are not in order, or one has a size or time out of its range.
    """

    jobs: tuple[BatchJob, ...]
    nodes: int
    processors_per_node: int = 1
    skipped: Skipped = Skipped()
    unix_start_s: int | None = None

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


def workload_of(
    log: Log,
    *,
    nodes: int | None = None,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
) -> Workload:
    """The jobs of a log that ran, on the log's machine.

    A job's size is what its user requested, else what it got; its estimate is the requested time, else its run time.

    Args:
        log: From `read_log`.
        nodes: Nodes of the machine; None takes MaxNodes of the header, else its MaxProcs by `processors_per_node`.
        processors_per_node: Turns processors into nodes, rounding up. None takes the header's MaxProcs by its
            MaxNodes, rounded up, where it has both, else 1.
        skip_too_large: Leave out jobs larger than the machine rather than refuse them.

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
    counts = dict.fromkeys(Skipped.__dataclass_fields__, 0)
    jobs = []
    for record in log.records:
        reason = _unfit(record)
        job = None if reason else _job(record, per_node)
        if job is not None and job.nodes > size:
            if not skip_too_large:
                raise _too_large(log.name, record, job, size)
            reason = "too_large"
        if reason:
            counts[reason] += 1
        elif job is not None:
            jobs.append(job)
    if not jobs:
        raise InvalidInputError(log.name, f"at least one job that ran, among {len(log.records)} lines")
    return Workload(_in_order(jobs), size, per_node, Skipped(**counts), log.unix_start_s)


def _in_order(jobs: Iterable[BatchJob]) -> tuple[BatchJob, ...]:
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _unfit(record: Record) -> str | None:
    """Why a line is no job to run."""
    if record.status in _PARTIAL:
        return "partial"
    if record.run_s <= 0:
        return "cancelled" if record.status == 5 else "without_run_time"
    return "without_processors" if record.requested <= 0 and record.allocated <= 0 else None


def _job(record: Record, per_node: int) -> BatchJob:
    return BatchJob(
        number=record.number,
        submit_s=record.submit_s,
        nodes=_ceil(record.requested if record.requested > 0 else record.allocated, per_node),
        run_s=record.run_s,
        estimate_s=record.requested_s if record.requested_s > 0 else record.run_s,
        line=record.line,
    )


def _too_large(name: str, record: Record, job: BatchJob, size: int) -> InvalidInputError:
    field = "requested" if record.requested > 0 else "allocated"
    return InvalidInputError(
        f"{name}:{record.line}: {field} processors",
        f"at most {size} nodes, the size of the machine (or skip jobs that are too large)",
        job.nodes,
    )
