"""How far a job is, how fast, and how much longer it takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.common.gpus import node_of
from malletrain.observer.eta import Eta, eta_within_stays, why_unknown
from malletrain.observer.job_facts import CurveFact, JobFact, ProgressFact


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
