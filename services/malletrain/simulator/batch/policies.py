"""In which order the queue is served, and whether later jobs may start before its head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.waiting import Flags, Floats, Waiting


class PolicyName(StrEnum):
    """What users call the policies."""

    FCFS = "fcfs"
    EASY = "easy"
    WFP = "wfp"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of the batch scheduler.

    Attributes:
        name: Which it is.
        backfills: Later jobs may start early if, by the estimates, they don't delay the head (EASY; Lifka 1995).
        scores: The priorities of the waiting jobs at a time (seconds); the highest is served first, of equals the
            earliest submission. None serves in order of submission.
    """

    name: PolicyName
    backfills: bool
    scores: Callable[[Waiting, float], Floats] | None = None


def wfp_scores(waiting: Waiting, now_s: float) -> Floats:
    """Argonne's utility function: (wait / requested time)³ · nodes.

    Cobalt's `WFP`; Tang, Lan, Desai, Buettner, "Fault-aware, utility-based job scheduling on Blue Gene/P systems"
    (Cluster 2009). It favours large jobs, and old ones by the measure of their length.
    """
    relative: Floats = (now_s - waiting.submit_s) / waiting.estimate_s
    # Products, as pow() need not round alike on all machines, and equal jobs must stay equal.
    scores: Floats = relative * relative * relative * waiting.nodes
    return scores


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy(PolicyName.FCFS, backfills=False),
            Policy(PolicyName.EASY, backfills=True),
            Policy(PolicyName.WFP, backfills=True, scores=wfp_scores),
        )
    }
)


def policy_named(name: str) -> Policy:
    """Look a policy up.

    Raises:
        InvalidInputError: there is none of that name.
    """
    try:
        return POLICIES[PolicyName(name)]
    except ValueError as error:
        raise InvalidInputError("policy", f"one of {', '.join(POLICIES)}", name) from error


def head_of(scores: Floats | None) -> int:
    """The position of the queue's head; the queue is not empty."""
    return 0 if scores is None else int(scores.argmax())


def first_of(scores: Floats | None, eligible: Flags) -> int | None:
    """The position that is served first of the eligible; None if none is. The queue is not empty."""
    found = int((eligible if scores is None else np.where(eligible, scores, -1.0)).argmax())
    return found if eligible[found] else None
