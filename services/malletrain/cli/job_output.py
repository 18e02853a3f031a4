"""How the command shows a job, of which it may have got only what everybody sees."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from malletrain.cli.output import to_dict
from malletrain.v1 import job_manager_pb2, resources_pb2

_HIDDEN = ("reason", "metrics")
_HIDDEN_IN_SPEC = ("command", "workingDirectory", "environment", "family")


def is_whole(job: resources_pb2.Job) -> bool:
    """Whether the caller sees all of a job: the command of a job is never empty, but is left out for others."""
    return bool(job.spec.command)


def job_dict(job: resources_pb2.Job) -> dict[str, Any]:
    """A job as protobuf JSON, with default values, and without what the caller may not see."""
    found = to_dict(job)
    if not is_whole(job):
        for name in _HIDDEN:
            found.pop(name, None)
        for name in _HIDDEN_IN_SPEC:
            found["spec"].pop(name, None)
    return found


def event_dict(event: job_manager_pb2.JobEvent) -> dict[str, Any]:
    """A row of the journal as protobuf JSON, without its prose if the caller may not see it."""
    found = to_dict(event)
    if not event.reason:
        found.pop("reason")
    return found


def metric_facts(metrics: Mapping[str, float], others: Collection[str]) -> dict[str, str]:
    """Rows for a trainer's metrics. The trainer chooses their names, which must not stand in place of other rows."""
    return {f"metric {name}" if name in others else name: f"{value:g}" for name, value in sorted(metrics.items())}


def reason_of(found: resources_pb2.Job | job_manager_pb2.JobEvent) -> str:
    """Why a job is in its state: the prose, or where the caller may not see it the reason code in plain words."""
    if found.reason:
        return found.reason
    name = resources_pb2.JobReason.Name(found.reason_code).removeprefix("JOB_REASON_")
    return "" if name == "UNSPECIFIED" else name.replace("_", " ").lower()
