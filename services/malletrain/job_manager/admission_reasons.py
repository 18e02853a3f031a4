"""Why jobs wait for admission, in words: their owner's limit, or burst buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.job_manager.admission import Places
from malletrain.job_manager.admission_window import AdmissionPass
from malletrain.job_manager.burst_buffer import QuotaUse, quota_use
from malletrain.job_manager.queue_entries import QueueEntry
from malletrain.job_manager.transaction import Transaction
from malletrain.job_manager.transitions import JobReason
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.model.job_state import JobState


def place_reason(places: int) -> str:
    """Why a job waits of which nothing else is known."""
    return f"waits for one of {places} places"


def explain_limit(transaction: Transaction, places: Places, by_owner: Mapping[str, int]) -> None:
    """Give the jobs that their owner's limit holds back a reason that says so. They keep it until they are admitted."""
    for job in transaction.active():
        held_back = job.state is JobState.QUEUED and by_owner[job.owner] >= places.per_owner
        if held_back and job.reason_code is not JobReason.OWNER_LIMIT:
            reason = f"waits for one of {places.all} places, of which {job.owner} may have {places.per_owner}"
            transaction.move(job, JobState.QUEUED, JobReason.OWNER_LIMIT, reason)


def explain_burst_buffer(
    transaction: Transaction,
    queued: Sequence[QueueEntry],
    found: AdmissionPass,
    places: Places,
    by_owner: Mapping[str, int],
) -> None:
    """Give the jobs that a pass has left waiting for burst buffer a reason that says so.

    Figures of what is free are in the reasons of jobs that were looked at, and follow it. The reasons of the others do
    not change: there may be thousands of them, and each change is stored.
    """
    quota = quota_use(transaction.jobs.values(), transaction.policy.burst_buffer_gb)
    places_left = places.all - sum(by_owner.values())
    looked_at, held_back = set(found.looked_at), set(found.held_back)
    in_front = [queued[index] for index in found.held_back if queued[index].burst_buffer_gb > quota.free_gb]
    for position, before in enumerate(queued):
        entry = QueueEntry(tuple(transaction.jobs[job.id] for job in before.jobs))
        job = entry.jobs[0]
        if job.admitted or not entry.burst_buffer_gb:
            continue
        if entry.burst_buffer_gb > quota.granted_gb:
            _explain(transaction, entry, _too_large(entry, quota))
        elif position not in looked_at and job.reason == _behind_others(entry):
            continue
        elif position in held_back and entry.burst_buffer_gb > quota.free_gb:
            _explain(transaction, entry, _not_free(entry, quota))
        elif places.per_owner and by_owner[entry.owner] >= places.per_owner:
            continue
        elif places_left > 0 and position in looked_at and in_front:
            _explain(transaction, entry, _behind(entry, in_front[0]))
        elif places_left > 0:
            _explain(transaction, entry, _behind_others(entry))
        elif job.reason_code is JobReason.BURST_BUFFER:
            for member in entry.jobs:
                transaction.move(member, JobState.QUEUED, JobReason.SUBMITTED, place_reason(places.all))


def _explain(transaction: Transaction, entry: QueueEntry, reason: str) -> None:
    for job in entry.jobs:
        if job.reason_code is not JobReason.BURST_BUFFER:
            transaction.move(job, JobState.QUEUED, JobReason.BURST_BUFFER, reason)
        elif job.reason != reason:
            transaction.put(job, reason=reason)


def _too_large(entry: QueueEntry, quota: QuotaUse) -> str:
    return f"asks for {_asked(entry)} of burst buffer, and only {burst_buffer_in_words(quota.granted_gb)} are granted"


def _not_free(entry: QueueEntry, quota: QuotaUse) -> str:
    free, granted = burst_buffer_in_words(quota.free_gb), burst_buffer_in_words(quota.granted_gb)
    return f"waits for {_asked(entry)} of burst buffer, {free} of {granted} are free"


def _behind(entry: QueueEntry, first: QueueEntry) -> str:
    return (
        f"waits for {_asked(entry)} of burst buffer behind {first.id}, which waits for {_asked(first)} of burst buffer"
    )


def _behind_others(entry: QueueEntry) -> str:
    return f"waits for {_asked(entry)} of burst buffer behind others that asked before"


def _asked(entry: QueueEntry) -> str:
    return burst_buffer_in_words(entry.burst_buffer_gb)
