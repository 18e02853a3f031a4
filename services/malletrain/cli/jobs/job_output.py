"""How the command shows a job, of which it may have got only what everybody sees."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from malletrain.cli.shared.output import to_dict
from malletrain.observer.job_intake import reason_in_words
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2

LABEL_CELLS = 18
"""Columns of the labels of a job's facts."""
_HIDDEN = ("reason", "metrics", "saveError")
_HIDDEN_IN_SPEC = ("command", "workingDirectory", "environment", "family", "launchNote", "project", "arrayParameters")


def is_whole(job: resources_pb2.Job) -> bool:
    """Whether the caller sees all of a job: the command of a job is never empty, but is left out for others."""
    return bool(job.spec.command)


def job_dict(job: resources_pb2.Job) -> dict[str, Any]:
    """A job as JSON, with default values, and without what the caller may not see. Its name stands at the top, too."""
    fields = to_dict(job)
    fields = {"id": fields.pop("id"), "name": job.spec.name} | fields
    if not is_whole(job):
        for name in _HIDDEN:
            fields.pop(name, None)
        for name in _HIDDEN_IN_SPEC:
            fields["spec"].pop(name, None)
    return fields


def event_dict(event: job_manager_pb2.JobEvent) -> dict[str, Any]:
    """A row of the journal as JSON, without its prose if the caller may not see it."""
    fields = to_dict(event)
    if not event.reason:
        fields.pop("reason")
    return fields


def metric_facts(metrics: Mapping[str, float], others: Collection[str]) -> dict[str, str]:
    """Rows for a trainer's metrics. The trainer chooses their names, which must not stand in place of other rows."""
    return {f"metric {name}" if name in others else name: f"{value:g}" for name, value in sorted(metrics.items())}


def slow_workers_in_words(progress: monitor_pb2.Progress) -> str:
    """Which workers hold up the others; empty where none does, or where that can't be measured."""
    lines = [
        f"rank {worker.rank} on {worker.node}: {worker.own_seconds * 1e3:,.1f} ms of its own in a step, "
        f"the others {worker.others_seconds * 1e3:,.1f} ms"
        for worker in progress.slow_workers
    ]
    return f"\n{' ' * LABEL_CELLS}".join(lines)


def saves_in_words(job: resources_pb2.Job) -> str:
    """What follows from a save that failed."""
    why = f" ({job.save_error})" if job.save_error else ""
    return f"the newest one failed{why}: it keeps its scale until one has succeeded"


def limits_in_words(limits: resources_pb2.JobLimits) -> str:
    """The limits and graces that a job has of its own, e.g. "step 3600 s, leave grace 120 s"; empty: all defaults."""
    named = ((field.name.removesuffix("_seconds").replace("_", " "), value) for field, value in limits.ListFields())
    return ", ".join(f"{name} {value:g} s" for name, value in named)


def trained_nothing(job: resources_pb2.Job) -> bool:
    """Whether a job is complete by its exit status alone, and has reported no batch: it may have given up."""
    complete = job.state == resources_pb2.JOB_STATE_COMPLETED
    return complete and job.reason_code == resources_pb2.JOB_REASON_EXITED and not job.samples


def reason_of(entry: resources_pb2.Job | job_manager_pb2.JobEvent) -> str:
    """Why a job is in its state: the prose, or where the caller may not see it the reason code in plain words."""
    return entry.reason or reason_in_words(entry.reason_code)


def run_in_words(spec: resources_pb2.JobSpec) -> str:
    """The launcher backend, and what was found of how the command's ranks are started."""
    backend = resources_pb2.LauncherBackend.Name(spec.backend).removeprefix("LAUNCHER_BACKEND_").lower()
    named = "its script shows, or by default" if backend == "unspecified" else backend
    return f"{named} ({spec.launch_note})" if spec.launch_note else named


def parameters_in_words(parameters: Mapping[str, str]) -> str:
    """The parameters of a job of an array, such as `depth=18 lr=0.1`, by name."""
    return " ".join(f"{name}={value}" for name, value in sorted(parameters.items()))
