"""Admission: the first jobs of the queue take part in plans, as many as there are places (MalleTrain, §3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from malletrain.job_manager.jobs import Job, JobSpec
from malletrain.job_manager.transaction import Transaction
from malletrain.job_manager.transitions import JobReason
from malletrain.model.job_state import JobState

_T = TypeVar("_T")


def first_in_line(queued: Iterable[_T], taken: int, places: int) -> list[_T]:
    """Who is admitted next: the first of the queue, as many as there are free places.

    Args:
        queued: The queue, first come first.
        taken: How many are admitted already.
        places: How many may be admitted at once.
    """
    return list(islice(queued, max(0, places - taken)))


def enqueue(transaction: Transaction, specs: tuple[JobSpec, ...], owner: str) -> None:
    """Put jobs of an owner at the end of the queue."""
    for spec in specs:
        transaction.last_number += 1
        transaction.add(
            Job(
                number=transaction.last_number,
                spec=spec,
                state=JobState.QUEUED,
                reason_code=JobReason.SUBMITTED,
                reason=f"waits for one of {transaction.policy.max_parallel} places",
                create_time=transaction.now,
                update_time=transaction.now,
                owner=owner,
            )
        )


def admit(transaction: Transaction) -> None:
    """Fill all free places at once, in order of submission, so that one plan serves all jobs of a submission."""
    active = transaction.active()
    places = transaction.policy.max_parallel
    taken = sum(job.admitted for job in active)
    queued = [job for job in active if job.state is JobState.QUEUED]
    for job in first_in_line(queued, taken, places):
        taken += 1
        reason = f"admitted to place {taken} of {places}, waits for nodes"
        transaction.move(job, JobState.WAITING, JobReason.ADMITTED, reason)
