"""Puts jobs into the queue and admits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from malletrain.job_manager.admission import Places, next_in_line
from malletrain.job_manager.admission_reasons import explain_burst_buffer, explain_limit, place_reason
from malletrain.job_manager.admission_window import AdmissionCandidate, AdmissionQueue, admission_pass
from malletrain.job_manager.burst_buffer import quota_use
from malletrain.job_manager.job_marks import JobMark
from malletrain.job_manager.jobs import Job, JobSpec
from malletrain.job_manager.queue_entries import QueueEntry, queue_entries
from malletrain.job_manager.transaction import Transaction
from malletrain.job_manager.transitions import JobReason
from malletrain.model.job_state import JobState


def enqueue(transaction: Transaction, specs: tuple[JobSpec, ...], owner: str) -> None:
    """Put jobs of an owner at the end of the queue. Members of a fleet have been submitted together."""
    first = transaction.last_number + 1
    for spec in specs:
        transaction.last_number += 1
        transaction.add(
            Job(
                number=transaction.last_number,
                spec=spec,
                state=JobState.QUEUED,
                reason_code=JobReason.SUBMITTED,
                reason=place_reason(transaction.policy.max_parallel),
                create_time=transaction.now,
                update_time=transaction.now,
                owner=owner,
                fleet_number=None if spec.fleet is None else first,
            )
        )


def admit(transaction: Transaction) -> None:
    """Fill all free places at once, so that one plan serves all jobs of a submission."""
    jobs, policy = transaction.jobs, transaction.policy
    if not jobs.has(JobMark.QUEUED):
        return
    places = Places(policy.max_parallel, policy.max_parallel_per_owner)
    by_owner = Counter({owner: tally.places for owner, tally in jobs.owners.items()})
    if by_owner.total() >= places.all and not (jobs.has(JobMark.ASKING) or places.per_owner):
        return
    entries = queue_entries(jobs.marked(JobMark.QUEUED))
    if jobs.has(JobMark.ASKING):
        _admit_by_burst_buffer(transaction, entries, places, by_owner)
    else:
        admitted = next_in_line(entries, lambda entry: entry.owner, by_owner, places, _uses(transaction))
        _give_places(transaction, admitted, places, by_owner)
    if places.per_owner:
        explain_limit(transaction, places, by_owner)


def _admit_by_burst_buffer(
    transaction: Transaction, queued: Sequence[QueueEntry], places: Places, by_owner: Counter[str]
) -> None:
    policy = transaction.policy.burst_buffer
    queue = AdmissionQueue(
        jobs=[AdmissionCandidate(entry.owner, entry.burst_buffer_gb, entry.passed_over) for entry in queued],
        taken=by_owner.copy(),
        places=places,
        uses=_uses(transaction),
        held_gb=quota_use(transaction.jobs.values(), policy.quota_gb).held_gb,
    )
    if not queue.free_places:
        return
    found = admission_pass(queue, policy)
    _give_places(transaction, [queued[position] for position in found.admitted], places, by_owner)
    for position in found.passed_over:
        for job in queued[position].jobs:
            transaction.put(job, passed_over=job.passed_over + 1)
    explain_burst_buffer(transaction, queued, found, places, by_owner)


def _give_places(
    transaction: Transaction, admitted: Sequence[QueueEntry], places: Places, by_owner: Counter[str]
) -> None:
    taken = by_owner.total()
    for entry in admitted:
        taken += 1
        by_owner[entry.owner] += 1
        reason = f"admitted to place {taken} of {places.all}, waits for nodes"
        for job in entry.jobs:
            transaction.move(job, JobState.WAITING, JobReason.ADMITTED, reason)


def _uses(transaction: Transaction) -> dict[str, float] | None:
    half_life = transaction.policy.fair_share_half_life_seconds
    if half_life <= 0:
        return None
    return {owner: use.at(transaction.now, half_life) for owner, use in transaction.ledger.items()}
