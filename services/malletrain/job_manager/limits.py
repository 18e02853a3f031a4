"""Limits of jobs that owners may ask for. Every error names the field."""

from __future__ import annotations

import math
from dataclasses import dataclass

from malletrain.common.job_limits import MAX_PHASE_SECONDS, JobLimits
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2

_PHASES = ("start_seconds", "step_seconds", "evaluation_seconds", "save_seconds")


@dataclass(frozen=True)
class LongestGraces:
    """What the operator allows of that by which jobs delay nodes, in seconds.

    Attributes:
        release: At a release of a node.
        leave: At a change of scale for which all workers are started again.
    """

    release: float = 30.0
    leave: float = 600.0


DEFAULT_GRACES = LongestGraces()


def check_limits(at: str, limits: resources_pb2.JobLimits, longest: LongestGraces) -> JobLimits:
    """The limits of a submission.

    Args:
        at: Path of the field.
        limits: What was submitted.
        longest: What the operator allows.

    Raises:
        InvalidInputError: one of them is no duration, or beyond its bound.
    """
    for name in _PHASES:
        _check(f"{at}.{name}", getattr(limits, name), MAX_PHASE_SECONDS, "30 days")
    bound = "the operator's bound (job_manager.longest_{}_grace_seconds)"
    _check(f"{at}.release_grace_seconds", limits.release_grace_seconds, longest.release, bound.format("release"))
    _check(f"{at}.leave_grace_seconds", limits.leave_grace_seconds, longest.leave, bound.format("leave"))
    return JobLimits(**{name: getattr(limits, name) for name in JobLimits.__dataclass_fields__})


def _check(field: str, seconds: float, longest: float, what: str) -> None:
    if not math.isfinite(seconds) or not 0 <= seconds <= longest:
        raise InvalidInputError(field, f"0 to {longest:g} seconds, {what}; 0 for the default", seconds)
