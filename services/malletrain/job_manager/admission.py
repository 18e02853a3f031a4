"""Admission: which jobs of the queue take part in plans, as many as there are places (MalleTrain, §3.2).

First come, first served. With fair share and several owners, a free place goes to the owner who has the fewest jobs in
plans; among equals to the one who has used less lately, and then to the job that came first. An owner may have a limit
of its own, and then does not hold up the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Places:
    """How many jobs may be admitted at once.

    Attributes:
        all: Of all owners.
        per_owner: Of one owner; 0: as many as of all.
    """

    all: int
    per_owner: int = 0


def next_in_line(
    queued: Sequence[_T],
    owner_of: Callable[[_T], str],
    taken: Mapping[str, int],
    places: Places,
    uses: Mapping[str, float] | None,
) -> list[_T]:
    """Who is admitted next.

    Args:
        queued: The queue, first come first.
        owner_of: Owner of a job.
        taken: How many jobs of each owner are admitted already.
        places: How many may be admitted at once.
        uses: Decayed use of each owner, for fair share; None: first come, first served.
    """
    free = places.all - sum(taken.values())
    if free <= 0 or not queued:
        return []
    if uses is None and not places.per_owner:
        return first_in_line(queued, 0, free)
    lines: dict[str, deque[tuple[int, _T]]] = {}
    for number, job in enumerate(queued):
        lines.setdefault(owner_of(job), deque()).append((number, job))
    counts = Counter(taken)

    def rank(owner: str) -> tuple[int, float, int]:
        number = lines[owner][0][0]
        return (0, 0.0, number) if uses is None else (counts[owner], uses.get(owner, 0.0), number)

    found: list[_T] = []
    while free > len(found):
        ready = [owner for owner in lines if not places.per_owner or counts[owner] < places.per_owner]
        if not ready:
            break
        owner = min(ready, key=rank)
        found.append(lines[owner].popleft()[1])
        counts[owner] += 1
        if not lines[owner]:
            del lines[owner]
    return found


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
    """Fill all free places at once, so that one plan serves all jobs of a submission."""
    queued = [job for job in transaction.jobs.values() if job.state is JobState.QUEUED]
    if not queued:
        return
    active, policy = transaction.active(), transaction.policy
    places = Places(policy.max_parallel, policy.max_parallel_per_owner)
    by_owner = Counter(job.owner for job in active if job.admitted)
    taken = by_owner.total()
    for job in next_in_line(queued, lambda job: job.owner, by_owner, places, _uses(transaction)):
        taken += 1
        by_owner[job.owner] += 1
        reason = f"admitted to place {taken} of {places.all}, waits for nodes"
        transaction.move(job, JobState.WAITING, JobReason.ADMITTED, reason)
    if places.per_owner:
        _explain_limit(transaction, places, by_owner)


def _uses(transaction: Transaction) -> dict[str, float] | None:
    half_life = transaction.policy.fair_share_half_life_seconds
    if half_life <= 0:
        return None
    return {owner: use.at(transaction.now, half_life) for owner, use in transaction.ledger.items()}


def _explain_limit(transaction: Transaction, places: Places, by_owner: Mapping[str, int]) -> None:
    """Give the jobs that their owner's limit holds back a reason that says so. They keep it until they are admitted."""
    for job in transaction.active():
        held_back = job.state is JobState.QUEUED and by_owner[job.owner] >= places.per_owner
        if held_back and job.reason_code is not JobReason.OWNER_LIMIT:
            reason = f"waits for one of {places.all} places, of which {job.owner} may have {places.per_owner}"
            transaction.move(job, JobState.QUEUED, JobReason.OWNER_LIMIT, reason)
