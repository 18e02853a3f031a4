"""Metrics of single jobs: those that take part in plans, and not more of them than the settings allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.state import ManagerState
from malletrain.runtime.metrics.rows import JobRow, limited

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


def job_families(state: ManagerState, occupied: Mapping[str, int], most: int) -> Iterator[Metric]:
    """One row for each admitted job, those with most nodes first; a last one for all that are too many.

    Args:
        state: What JobManager knows.
        occupied: Nodes with live workers by job.
        most: Most jobs with rows of their own.
    """
    admitted = [job for job in state.jobs.values() if job.admitted]
    ordered = sorted(admitted, key=lambda job: (-len(job.held), job.number))
    rows = list(limited([_row(job, occupied.get(job.id, 0)) for job in ordered], most))
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
