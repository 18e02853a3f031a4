"""How far a job is, and when it will be done: from its target, its curve and how many nodes are idle. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from malletrain.common.gpus import node_of
from malletrain.observer.job_facts import CurveFact, JobFact, ProgressFact

if TYPE_CHECKING:
    from malletrain.observer.history import Minute  # `malletrain jobs` starts sooner without

_LOW, _HIGH = 0.1, 0.9
CURVE_UNKNOWN = "curve not known"
"""Why it is not known how much longer a job takes, by `why_unknown`."""


@dataclass(frozen=True)
class Eta:
    """How much longer a job takes, in seconds.

    Attributes:
        expected: At its present scale; None without one.
        soonest: On as many nodes as were idle in the best tenth of the time, and at the upper end of its curve.
        latest: On as many as in the worst tenth, at the lower end; None where it would have no nodes at all then.
    """

    expected: float | None
    soonest: float | None
    latest: float | None


def idle_quantiles(minutes: Sequence[Minute]) -> tuple[float, float] | None:
    """Idle nodes that were exceeded in nine tenths of the minutes, and in one tenth; None without minutes."""
    counts = sorted(minute.idle / 60.0 for minute in minutes)
    if not counts:
        return None
    last = len(counts) - 1
    return counts[round(_LOW * last)], counts[round(_HIGH * last)]


def expected_idle(stays: Sequence[float], seconds: float) -> float:
    """Mean number of the present idle nodes that are still there within a time, if none joins.

    Args:
        stays: Expected further stay of each, in seconds; 0 where nothing is known: such a node is taken to stay.
        seconds: How far to look ahead.
    """
    if seconds <= 0:
        return float(len(stays))
    return sum(min(stay, seconds) / seconds if stay > 0 else 1.0 for stay in stays)


def eta_within_stays(
    job: JobFact, curve: CurveFact | None, samples: int, stays: Sequence[float] | None, rate: float = 0.0
) -> Eta | None:
    """How much longer a job takes, for those who do not know how many nodes were idle before; None without a target.

    The interval is from the nodes that are idle now to what is left of them as they are expected to leave. Where no
    curve is known, there is none, and the job is taken to go on at its measured rate.

    Args:
        samples: Samples so far.
        stays: As `expected_idle`; None where the idle nodes are not known: its nodes are taken to stay.
        rate: Measured samples per second at its present scale; 0: not known.
    """
    if stays is None:
        stays = (0.0,) * max(len(job.confirmed), len(job.commanded))
    now = len(stays)
    first = eta(job, curve, samples, now, (now, now))
    if first is None:
        if not job.target_samples or job.final or rate <= 0 or not job.confirmed:
            return None
        return Eta(max(0, job.target_samples - samples) / rate, None, None)
    if first.expected is None:
        return first
    return eta(job, curve, samples, now, (min(expected_idle(stays, first.expected), now), now))


def why_unknown(job: JobFact, curve: CurveFact | None, remaining: Eta | None) -> str:
    """Why it is not known how much longer a job takes; empty where it is."""
    if remaining is not None and (remaining.expected is not None or remaining.soonest is not None):
        return ""
    if job.final:
        return "ended"
    if not job.target_samples:
        return "no target"
    if not job.confirmed and not job.commanded:
        return "no nodes"
    if curve is None or not curve.points:
        return CURVE_UNKNOWN
    return "no rate at this scale"


def eta(
    job: JobFact, curve: CurveFact | None, samples: int, idle: int, quantiles: tuple[float, float] | None
) -> Eta | None:
    """How much longer a job takes; None without a target or a curve.

    Its share of the idle nodes is assumed to stay what it is.

    Args:
        samples: Samples so far.
        idle: Idle nodes now.
        quantiles: As `idle_quantiles`.
    """
    if not job.target_samples or curve is None or not curve.points or job.final:
        return None
    remaining = max(0, job.target_samples - samples)
    nodes = len(job.confirmed) or len(job.commanded)
    low, high = quantiles or (idle, idle)
    share = nodes / idle if idle and nodes else 0.0
    most = _permitted_scale(job, max(nodes, share * max(high, idle)))
    least = _permitted_scale(job, min(nodes, share * min(low, idle)))
    return Eta(
        _over(remaining, curve.rate(nodes)),
        _over(remaining, curve.rate(most, 1.0)),
        _over(remaining, curve.rate(least, -1.0)),
    )


def _permitted_scale(job: JobFact, nodes: float) -> int:
    """The largest permitted scale of at most so many nodes; 0 if there is none."""
    from malletrain.model.job_terms import JobTerms  # of jobs with a target only

    return JobTerms(job.min_nodes, job.max_nodes, permitted_nodes=job.permitted).max_within(int(nodes + 1e-9))


def _over(samples: float, rate: float) -> float | None:
    return samples / rate if rate > 0 else None


@dataclass(frozen=True)
class Outlook:
    """How far a job is, and how much longer it takes.

    Attributes:
        samples: Samples so far, net of rollbacks.
        share: Of its target, 0 to 1; None without a target.
        rate: Samples per second at its present scale; None where it does not train or that is not measured yet.
        left: How much longer it takes; None where that is not known.
        unknown: Why it is not known; empty where it is.
    """

    samples: int
    share: float | None
    rate: float | None
    left: Eta | None
    unknown: str


def outlook_of(
    job: JobFact, progress: ProgressFact | None, curve: CurveFact | None, stays: Sequence[float] | None
) -> Outlook:
    """What can be said of a job.

    Args:
        progress: By Monitor; None where it knows nothing of the job, or does not answer.
        curve: Its curve; None where none is known.
        stays: Expected further stay of each idle node in seconds, 0 where nothing is known; None where the idle nodes
            are not known.
    """
    if any(node_of(name) != name for name in job.confirmed | job.commanded):
        curve = None  # a member of a fleet: how many GPUs it has depends on what the others need
    samples = max(job.samples, progress.samples) if progress is not None else job.samples
    rate = progress.rate if progress is not None and job.confirmed and not job.final else 0.0
    remaining = eta_within_stays(job, curve, samples, stays, rate)
    unknown = why_unknown(job, curve, remaining)
    share = min(1.0, samples / job.target_samples) if job.target_samples else None
    return Outlook(samples, share, rate or None, None if unknown else remaining, unknown)
