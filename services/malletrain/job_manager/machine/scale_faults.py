"""Scales at which a job's script has failed soon after a start. Pure.

Many scripts work at some scales only: their batch must divide by the number of workers, say. So a scale at which the
script fails soon is left out for a while, and others are tried. Without another scale that has trained well, the
failure counts as any other does; with one, it is the scale's, and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any

from malletrain.common.backoff import pause_after
from malletrain.job_manager.machine.jobs import Job, ScaleFault
from malletrain.job_manager.machine.stimuli import WorkerFailure

GOOD_SECONDS = 60.0
"""What has trained so long at a scale has shown that it works there."""
_TRY_OTHERS_SECONDS = 120.0
_FIRST_SECONDS = 600.0
_MAX_SECONDS = 86_400.0
_MAX_SCALES = 1000
"""How many are remembered of each kind; no script is tried at more."""


def is_scale_fault(job: Job, failure: WorkerFailure) -> bool:
    """Whether a failure may come from the scale: it came soon, at a scale at which nothing has trained well yet."""
    if job.fleet_number is not None or job.spec.min_nodes == job.spec.max_nodes:
        return False
    soon = failure.by_script and failure.seconds < GOOD_SECONDS
    return soon and job.spec.permits(failure.scale) and failure.scale not in job.good_scales


def has_trained_elsewhere(job: Job, scale: int) -> bool:
    """Whether it has trained well at a scale other than this one."""
    return any(good != scale for good in job.good_scales)


def with_fault(job: Job, scale: int, now: float) -> tuple[ScaleFault, ...]:
    """The job's scale faults after it has failed soon after a start at a scale.

    Once it has failed so at each scale that it could have had, nothing is left out any more.
    """
    known = {fault.scale: fault for fault in job.scale_faults}
    count = known[scale].count + 1 if scale in known else 1
    elsewhere = has_trained_elsewhere(job, scale)
    known[scale] = ScaleFault(scale, count, now + (_pause(count) if elsewhere else _TRY_OTHERS_SECONDS))
    left_out = {fault.scale for fault in known.values() if fault.until is not None}
    if not elsewhere and left_out.issuperset(_permitted_up_to(job, max(left_out))):
        known = {number: replace(fault, until=None) for number, fault in known.items()}
    return tuple(known[number] for number in sorted(known)[:_MAX_SCALES])


def _pause(count: int) -> float:
    """Seconds for which a scale is left out after so many failures there, where another one has trained well."""
    return pause_after(count, _FIRST_SECONDS, _MAX_SECONDS)


def may_change_with_time(job: Job) -> bool:
    """Whether time alone may change what is known of its scales."""
    begun = job.scale_since is not None and job.fleet_number is None and len(job.commanded) not in job.good_scales
    return begun or any(fault.until is not None for fault in job.scale_faults)


def changes_with_time(job: Job, now: float) -> dict[str, Any]:
    """What time alone changes of the job's fields: scales that may be tried again, or have trained well by now."""
    faults = tuple(
        replace(fault, until=None) if fault.until is not None and fault.until <= now else fault
        for fault in job.scale_faults
    )
    scale = len(job.commanded)
    if now < _proves_at(job):
        return {"scale_faults": faults}
    # From now on there is one that works: the others can wait.
    faults = tuple(
        replace(fault, until=max(fault.until or 0.0, now + _pause(fault.count)))
        for fault in faults
        if fault.scale != scale
    )
    return {"scale_faults": faults, "good_scales": tuple(sorted({*job.good_scales, scale}))}


def _proves_at(job: Job) -> float:
    """When it has shown, as things are, that its present scale works; infinity where it does not, or has before."""
    known = len(job.commanded) in job.good_scales or len(job.good_scales) >= _MAX_SCALES
    if known or job.scale_since is None or job.stalled_since is not None:
        return inf
    return job.scale_since + GOOD_SECONDS


def next_change(job: Job) -> float:
    """When `changes_with_time` may next have something, as things are, in seconds since the epoch; infinity: never."""
    return min([_proves_at(job), *(fault.until for fault in job.scale_faults if fault.until is not None)])


def describe(job: Job, scale: int, now: float, *, ends: bool) -> str:
    """What follows from a failure at a scale, for people; empty where nothing does.

    Args:
        job: The job after it.
        now: Seconds since the epoch.
        ends: Whether it is not started again.
    """
    fault = next((fault for fault in job.scale_faults if fault.scale == scale), None)
    if fault is None:
        return ""
    here = job.in_words(scale)
    if not has_trained_elsewhere(job, scale):
        failed = {fault.scale for fault in job.scale_faults}
        if failed.issuperset(_permitted_up_to(job, max(failed))):
            return f"it fails soon at each scale: {_list_scales(sorted(failed))} nodes" if len(failed) > 1 else ""
        others = "" if ends else ", so others are tried"
        return f"it fails soon on {here}{others}; --permitted names the scales that work"
    good = _list_scales(good for good in job.good_scales if good != scale)
    minutes = max(1, round(((fault.until or now) - now) / 60))
    return (
        f"it fails soon on {here} and has trained well on {good}, so {here} are left out for {minutes} min; "
        "--permitted names the scales that work"
    )


def _permitted_up_to(job: Job, scale: int) -> Iterable[int]:
    return (other for other in range(job.spec.smallest, scale + 1) if job.spec.permits(other))


def _list_scales(scales: Iterable[int]) -> str:
    """Scales, the first few of many."""
    words = [str(scale) for scale in scales]
    return ", ".join(words[:8]) + (", …" if len(words) > 8 else "")
