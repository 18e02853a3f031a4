"""What feeds do for the members of a fleet, and who waits, for people and for scripts. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.v1 import monitor_pb2, resources_pb2

_MAX_NAMES = 8
_REASONS = {resources_pb2.JOB_REASON_TRAINER_DONE: "yes", resources_pb2.JOB_REASON_TARGET_REACHED: "at max_epochs"}


def converged(job: resources_pb2.Job) -> str:
    """Whether a member has converged: its script has said so (yes), or it has trained as long as it may."""
    if job.state != resources_pb2.JOB_STATE_COMPLETED:
        return "-"
    return _REASONS.get(job.reason_code, "yes")


def waiting_members(jobs: Iterable[resources_pb2.Job]) -> list[str]:
    """Names of members that have not ended and have no GPU."""
    return [job.spec.name for job in jobs if job.state not in FINAL_JOB_STATES and not job.commanded_nodes]


def feed_dict(progress: Iterable[monitor_pb2.Progress]) -> dict[str, Any] | None:
    """What feeds do for members: medians of what they can prepare, and how many samples came from them; None: nothing.

    Returns:
        `ratePerCore` and `ratePerNode` in samples/s (0: not known), `receivedSamples` that feeds have prepared for the
        members' processes that report, and `preparedSamples` that these have prepared themselves.
    """
    reports = [entry.feed for entry in progress if entry.HasField("feed")]
    if not reports:
        return None
    known = [report for report in reports if report.cpu_seconds > 0]
    return {
        "ratePerCore": statistics.median([1 / report.cpu_seconds for report in known]) if known else 0.0,
        "ratePerNode": statistics.median([report.processes / report.cpu_seconds for report in known]) if known else 0.0,
        "receivedSamples": sum(report.received_samples for report in reports),
        "preparedSamples": sum(report.prepared_samples for report in reports),
    }


def feed_in_words(progress: Iterable[monitor_pb2.Progress]) -> str:
    """The same, for people; empty: members share no samples."""
    feed = feed_dict(progress)
    if feed is None:
        return ""
    received, all_samples = feed["receivedSamples"], feed["receivedSamples"] + feed["preparedSamples"]
    shared = f"{received / all_samples:.0%} of the samples came from it" if all_samples else "no samples yet"
    if not feed["ratePerCore"]:
        return f"feed: what it can prepare is not known yet; {shared}"
    per_core, per_node = feed["ratePerCore"], feed["ratePerNode"]
    return f"feed: prepares up to {per_node:,.1f} samples/s on a node, {per_core:,.1f} on a core; {shared}"


def waiting_in_words(jobs: Sequence[resources_pb2.Job]) -> str:
    """Members that wait for GPUs, for people; empty: none does."""
    names = waiting_members(jobs)
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"waiting for GPUs: {', '.join(names[:_MAX_NAMES])}{more}"
