"""Scheduling policies: the order of the queue, and whether jobs may be backfilled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.wait_queue import Flags, Floats, WaitQueue


class PolicyName(StrEnum):
    """Names of the policies."""

    FCFS = "fcfs"
    EASY = "easy"
    WFP = "wfp"


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """A policy of the batch scheduler.

    Attributes:
        name: Its name.
        backfills: Whether later jobs may start first if they do not delay the head by the estimates (EASY; Lifka 1995).
        scores: Priorities of the waiting jobs at a time in seconds; the highest is served first, ties by submission.
            None: jobs are served in the order of submission.
    """

    name: PolicyName
    backfills: bool
    scores: Callable[[WaitQueue, float], Floats] | None = None


def wfp_scores(waiting: WaitQueue, now_s: float) -> Floats:
    """Argonne's utility function: (wait / requested time)³ · nodes.

    Cobalt's `WFP`; Tang, Lan, Desai, Buettner, "Fault-aware, utility-based job scheduling on Blue Gene/P systems"
    (Cluster 2009). It favours large jobs, and jobs that have waited long relative to their length.
    """
    relative: Floats = (now_s - waiting.submit_s) / waiting.estimate_s
    # Products instead of pow(), which may round differently on other machines: equal jobs must have equal scores.
    scores: Floats = relative * relative * relative * waiting.nodes
    return scores


POLICIES: Mapping[PolicyName, BatchPolicy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            BatchPolicy(PolicyName.FCFS, backfills=False),
            BatchPolicy(PolicyName.EASY, backfills=True),
            BatchPolicy(PolicyName.WFP, backfills=True, scores=wfp_scores),
        )
    }
)


def policy_named(name: str) -> BatchPolicy:
    """The policy of a name.

    Raises:
        InvalidInputError: there is no such policy.
    """
    try:
        return POLICIES[PolicyName(name)]
    except ValueError as error:
        raise InvalidInputError("policy", f"one of {', '.join(POLICIES)}", name) from error


def head_of(scores: Floats | None) -> int:
    """Position of the head of the queue, which is not empty."""
    return 0 if scores is None else int(scores.argmax())


def first_of(scores: Floats | None, eligible: Flags) -> int | None:
    """Position of the eligible job that is served first; None if no job is eligible."""
    found = int((eligible if scores is None else np.where(eligible, scores, -1.0)).argmax())
    return found if eligible[found] else None
