"""How far jobs are, how fast, and how much longer they take: for `malletrain jobs` and `malletrain job`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc

from malletrain.cli.jobs.job_output import trained_nothing
from malletrain.cli.shared.output import duration
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.observer import job_intake
from malletrain.observer.eta import CURVE_UNKNOWN, Eta, Outlook, outlook_of
from malletrain.observer.job_facts import CurveFact, ProgressFact
from malletrain.v1 import monitor_pb2, profiler_pb2, resources_pb2, scavenger_pb2

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Known:
    """What the other services know. None: the service did not answer.

    Attributes:
        progress: By job, from Monitor.
        curves: By job, from the Profiler.
        stays: Expected further stay of each idle node in seconds, from the Scavenger; 0 where nothing is known.
    """

    progress: Mapping[str, ProgressFact] | None = None
    curves: Mapping[str, CurveFact] | None = None
    stays: Sequence[float] | None = None


def ask_services(stubs: ServiceStubs, jobs: Collection[resources_pb2.Job]) -> Known:
    """What Monitor, the Profiler and the Scavenger know of these jobs, as far as they answer."""
    unfinished = {job.id for job in jobs if not job.HasField("end_time")}
    if not unfinished:
        return Known({}, {}, ())
    job_ids = sorted(unfinished) if len(unfinished) == 1 else []  # of many all are asked for: the request stays small
    progress = _if_answered(
        lambda: stubs.monitor.GetProgress(monitor_pb2.GetProgressRequest(job_ids=job_ids), timeout=DEADLINE_SECONDS)
    )
    nodes = _if_answered(lambda: stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS))
    profiles = _if_answered(lambda: _profiles(stubs))
    return Known(
        None if progress is None else {entry.job_id: job_intake.progress_fact(entry) for entry in progress.progress},
        None if profiles is None else {entry.job_id: job_intake.curve_fact(entry) for entry in profiles},
        None if nodes is None else [node.expected_stay_seconds for node in nodes.nodes],
    )


def _profiles(stubs: ServiceStubs) -> Sequence[profiler_pb2.Profile]:
    """All curves: the first message of a stream."""
    stream = stubs.profiler.WatchProfiles(profiler_pb2.WatchProfilesRequest(), timeout=DEADLINE_SECONDS)
    try:
        return list(next(stream).profiles)
    finally:
        stream.cancel()


def _if_answered(call: Callable[[], AnswerT]) -> AnswerT | None:
    """What a service answers; None if it does not. Jobs are shown all the same."""
    try:
        return call()
    except (grpc.RpcError, StopIteration):
        return None


def outlook(job: resources_pb2.Job, known: Known) -> Outlook:
    """How far a job is, and how much longer it takes."""
    fact = job_intake.job_fact(job)
    computed = outlook_of(fact, (known.progress or {}).get(job.id), (known.curves or {}).get(job.id), known.stays)
    if computed.unknown == CURVE_UNKNOWN and known.curves is None:
        return replace(computed, unknown="the Profiler does not answer")
    return computed


def outlook_dict(seen: Outlook) -> dict[str, Any]:
    """An outlook for scripts. Seconds are null where they are not known; `unknown` says why."""
    eta = seen.left or Eta(None, None, None)
    return {
        "samples": seen.samples,
        "share": seen.share,
        "rate": seen.rate,
        "expectedSeconds": eta.expected,
        "soonestSeconds": eta.soonest,
        "latestSeconds": eta.latest,
        "unknown": seen.unknown,
    }


def samples_in_words(seen: Outlook, target: int) -> str:
    """`1,200 / 4,000 (30%)`, or without a target `1,200`."""
    share = "" if seen.share is None else f" ({int(100 * seen.share)}%)"
    return f"{seen.samples:,}" + (f" / {target:,}{share}" if target else "")


def lost_in_words(job: resources_pb2.Job, progress: monitor_pb2.Progress) -> str:
    """What a job has lost by rollbacks, or that it is not known; of one that trained nothing, that."""
    if trained_nothing(job):
        return "no batch was reported"
    if job.samples_known or not progress.records:
        return f"{progress.samples_lost:,} lost by rollbacks"
    before = f" ({progress.samples_lost:,} were processed before)" if progress.samples_lost else ""
    return f"since its last start from disk{before}; it reports no position: what was lost is not known"


def rate_in_words(seen: Outlook) -> str:
    """Samples per second; `-` where it does not train or nothing is measured yet."""
    return f"{seen.rate:,.1f}" if seen.rate else "-"


def eta_in_words(seen: Outlook) -> str:
    """`3m 20s (2m 50s to 1h 05m)`; `open` where no nodes may be left for it; `unknown: WHY`."""
    eta = seen.left
    if eta is None:
        return f"unknown: {seen.unknown}"
    expected = "" if eta.expected is None else duration(eta.expected)
    if eta.soonest is None:
        return expected
    latest = "open" if eta.latest is None else duration(eta.latest)
    return f"{expected} ({duration(eta.soonest)} to {latest})".strip()
