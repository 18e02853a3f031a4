"""Jobs as JobManager reports them to Profiler's machine."""

from __future__ import annotations

from typing import Any

from malletrain.model.job_state import JobState
from malletrain.profiler.machine.curve_estimator import JobDeclaration
from malletrain.profiler.machine.job_views import ReportedJob


def reported_job(job_id: str, *nodes: str, fleet_id: str = "", **fields: Any) -> ReportedJob:
    """An admitted job of 1 to 4 nodes that trains on `nodes`."""
    declaration = JobDeclaration(job_id=job_id, min_nodes=1, max_nodes=4, fleet_id=fleet_id)
    fields = {"wanted_nodes": nodes, "commanded_nodes": nodes, "confirmed_nodes": nodes, "admitted": True} | fields
    return ReportedJob(declaration, fields.pop("state", JobState.RUNNING), **fields)
