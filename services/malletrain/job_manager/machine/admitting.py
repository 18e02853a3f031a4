"""Admits jobs of the queue, and says why the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.job_manager.machine.admission import (
    AdmissionCandidate,
    AdmissionPass,
    AdmissionQueue,
    Places,
    admission_pass,
    next_in_line,
)
from malletrain.job_manager.machine.burst_buffer import QuotaUse, quota_use
from malletrain.job_manager.machine.job_marks import JobMark
from malletrain.job_manager.machine.jobs import ArraySpec, Job
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.model.job_state import JobState


@dataclass(frozen=True)
class QueueEntry:
    """What is admitted as a whole: one job, or all members of a fleet.

    Attributes:
        jobs: One job, or the members of a fleet; at least one.
    """

    jobs: tuple[Job, ...]

    @property
    def id(self) -> str:
        """Identifier of the fleet, or of the job."""
        return self.jobs[0].fleet_id or self.jobs[0].id

    @property
    def owner(self) -> str:
        """The user who submitted it."""
        return self.jobs[0].owner

    @property
    def burst_buffer_gb(self) -> int:
        """What all members together ask for, in GB."""
        return sum(job.spec.burst_buffer_gb for job in self.jobs)

    @property
    def passed_over(self) -> int:
        """How many times it was passed over."""
        return max(job.passed_over for job in self.jobs)


def queue_entries(jobs: Iterable[Job]) -> list[QueueEntry]:
    """The entries that jobs make, in the order of their first jobs."""
    by_unit: dict[str, list[Job]] = {}
    for job in jobs:
        by_unit.setdefault(job.fleet_id or job.id, []).append(job)
    return [QueueEntry(tuple(members)) for members in by_unit.values()]


def within_arrays(entries: Iterable[QueueEntry], admitted: Mapping[int, int]) -> list[QueueEntry]:
    """The entries that are in line: of each array with a limit the first ones, up to that.

    Args:
        entries: The queue, first come first.
        admitted: How many jobs of each array take part in plans.
    """
    counts = Counter(admitted)
    in_line = []
    for entry in entries:
        job = entry.jobs[0]
        array, number = job.spec.array, job.array_number
        if array is not None and number is not None and array.max_admitted:
            if counts[number] >= array.max_admitted:
                continue
            counts[number] += 1
        in_line.append(entry)
    return in_line


def admit(transaction: Transaction) -> None:
    """Fill all free places at once, so that one plan serves all jobs of a submission."""
    jobs, policy = transaction.jobs, transaction.policy
    if not jobs.has(JobMark.QUEUED):
        return
    places = Places(policy.max_parallel, policy.max_parallel_per_owner)
    by_owner = Counter({owner: tally.places for owner, tally in jobs.owners.items()})
    # Without a free place only the reasons of jobs can change, of which burst buffer and owners' limits have figures.
    if by_owner.total() >= places.all and not (jobs.has(JobMark.ASKING) or places.per_owner):
        return
    entries = within_arrays(queue_entries(jobs.marked(JobMark.QUEUED)), jobs.arrays)
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
    passed = admission_pass(queue, policy)
    _give_places(transaction, [queued[position] for position in passed.admitted], places, by_owner)
    for position in passed.passed_over:
        for job in queued[position].jobs:
            transaction.put(job, passed_over=job.passed_over + 1)
    explain_burst_buffer(transaction, queued, passed, places, by_owner)


def _give_places(
    transaction: Transaction, admitted: Sequence[QueueEntry], places: Places, by_owner: Counter[str]
) -> None:
    place = by_owner.total()
    for entry in admitted:
        place += 1
        by_owner[entry.owner] += 1
        reason = f"admitted to place {place} of {places.all}, waits for nodes"
        for job in entry.jobs:
            transaction.move(job, JobState.WAITING, JobReason.ADMITTED, reason)


def _uses(transaction: Transaction) -> dict[str, float] | None:
    half_life = transaction.policy.fair_share_half_life_seconds
    if half_life <= 0:
        return None
    return {owner: use.at(transaction.now, half_life) for owner, use in transaction.ledger.items()}


def place_reason(places: int, array: ArraySpec | None = None) -> str:
    """Why a job waits of which nothing else is known."""
    limit = 0 if array is None else array.max_admitted
    return f"waits for one of {places} places" + (f", of which its array may have {limit}" if limit else "")


def explain_limit(transaction: Transaction, places: Places, by_owner: Mapping[str, int]) -> None:
    """Give the jobs that their owner's limit holds back a reason that says so. They keep it until they are admitted."""
    for job in transaction.active():
        in_line = job.state is JobState.QUEUED and not job.waits_for
        held_back = in_line and by_owner[job.owner] >= places.per_owner
        if held_back and job.reason_code is not JobReason.OWNER_LIMIT:
            reason = f"waits for one of {places.all} places, of which {job.owner} may have {places.per_owner}"
            transaction.move(job, JobState.QUEUED, JobReason.OWNER_LIMIT, reason)


def explain_burst_buffer(
    transaction: Transaction,
    queued: Sequence[QueueEntry],
    passed: AdmissionPass,
    places: Places,
    by_owner: Mapping[str, int],
) -> None:
    """Give the jobs that a pass has left waiting for burst buffer a reason that says so.

    Figures of what is free are in the reasons of jobs that were looked at, and follow it. The reasons of the others do
    not change: there may be thousands of them, and each change is stored.
    """
    quota = quota_use(transaction.jobs.values(), transaction.policy.burst_buffer_gb)
    places_left = places.all - sum(by_owner.values())
    looked_at, held_back = set(passed.looked_at), set(passed.held_back)
    in_front = [queued[index] for index in passed.held_back if queued[index].burst_buffer_gb > quota.free_gb]
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
                transaction.move(member, JobState.QUEUED, JobReason.SUBMITTED, place_reason(places.all, job.spec.array))


def _explain(transaction: Transaction, entry: QueueEntry, reason: str) -> None:
    for job in entry.jobs:
        if job.reason_code is not JobReason.BURST_BUFFER:
            transaction.move(job, JobState.QUEUED, JobReason.BURST_BUFFER, reason)
        elif job.reason != reason:
            transaction.put(job, reason=reason)


def _too_large(entry: QueueEntry, quota: QuotaUse) -> str:
    granted = burst_buffer_in_words(quota.granted_gb)
    return f"asks for {_buffer_of(entry)} of burst buffer, and only {granted} are granted"


def _not_free(entry: QueueEntry, quota: QuotaUse) -> str:
    free, granted = burst_buffer_in_words(quota.free_gb), burst_buffer_in_words(quota.granted_gb)
    return f"waits for {_buffer_of(entry)} of burst buffer, {free} of {granted} are free"


def _behind(entry: QueueEntry, first: QueueEntry) -> str:
    own, before = _buffer_of(entry), _buffer_of(first)
    return f"waits for {own} of burst buffer behind {first.id}, which waits for {before} of burst buffer"


def _behind_others(entry: QueueEntry) -> str:
    return f"waits for {_buffer_of(entry)} of burst buffer behind others that asked before"


def _buffer_of(entry: QueueEntry) -> str:
    return burst_buffer_in_words(entry.burst_buffer_gb)
