"""Jobs to and from JSON, for the store."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from malletrain.job_manager.jobs import Backend, CurvePoint, Job, ProfileMode, Release, Spec, StopIntent
from malletrain.job_manager.states import JobState

_NODE_SETS = ("wanted", "commanded", "confirmed", "held", "trained")


def encode(job: Job) -> str:
    """A job as JSON."""
    return json.dumps(dataclasses.asdict(job), separators=(",", ":"))


def decode(body: str) -> Job:
    """A job from its JSON."""
    fields: dict[str, Any] = json.loads(body)
    fields.update((name, tuple(fields[name])) for name in _NODE_SETS)
    stop = fields["stop"]
    fields.update(
        spec=_spec(fields["spec"]),
        state=JobState(fields["state"]),
        releases=tuple(Release(**release) for release in fields["releases"]),
        stop=None if stop is None else StopIntent(stop),
    )
    return Job(**fields)


def _spec(fields: dict[str, Any]) -> Spec:
    fields.update(
        command=tuple(fields["command"]),
        permitted_nodes=tuple(fields["permitted_nodes"]),
        curve=tuple(CurvePoint(**point) for point in fields["curve"]),
        backend=Backend(fields.get("backend", Backend.DEFAULT)),
        profile=ProfileMode(fields.get("profile", ProfileMode.DEFAULT)),
    )
    return Spec(**fields)
