"""Reconciliation: compares the wanted, commanded and confirmed nodes of each job, and takes the next step."""

from __future__ import annotations

from malletrain.job_manager.admission import admit
from malletrain.job_manager.jobs import Job, StopIntent, count_nodes
from malletrain.job_manager.state import Notice
from malletrain.job_manager.transaction import Transaction
from malletrain.job_manager.transitions import JobReason
from malletrain.model.job_state import JobState


def reconcile(transaction: Transaction) -> None:
    """Bring every job as far as possible now: shrinks and stops before growths and starts, admission last."""
    for job in _unsettled(transaction):
        _end_if_target_reached(transaction, job)
    for job in _unsettled(transaction):
        _give_up_nodes(transaction, job)
    for job in _unsettled(transaction):
        _take_nodes(transaction, job)
    admit(transaction)


def _unsettled(transaction: Transaction) -> list[Job]:
    """Jobs for which there may be something to do. Most train on the nodes that are wanted for them."""
    return [job for job in transaction.jobs.values() if not _is_settled(job) and not job.state.final]


def _is_settled(job: Job) -> bool:
    # Equal tuples suffice: other orders of the same nodes are looked at, and nothing is found to do.
    return job.wanted == job.commanded and (bool(job.wanted) or not job.supervised) and not job.target_reached


def _end_if_target_reached(transaction: Transaction, job: Job) -> None:
    if not job.target_reached or not job.admitted:
        return
    reason = f"reached its target of {job.spec.target_samples} samples"
    if job.supervised:
        transaction.stop(job, StopIntent.COMPLETE, JobReason.TARGET_REACHED, reason)
    else:
        transaction.finish(job, JobState.COMPLETED, JobReason.TARGET_REACHED, reason)


def _give_up_nodes(transaction: Transaction, job: Job) -> None:
    if not job.supervised or job.stop is not None:
        return
    if not job.wanted:
        reason = f"plan {job.plan_generation}: no nodes"
        transaction.stop(job, StopIntent.WAIT, JobReason.PLAN_NO_NODES, reason)
        return
    surplus = set(job.commanded) - set(job.wanted)
    if job.state is not JobState.RUNNING or not surplus:
        return
    kept = tuple(node for node in job.commanded if node in job.wanted)
    gained = _gained_nodes(job)
    if gained and _are_free(transaction, gained):
        kept += gained
    elif not job.spec.permits(len(kept)) and kept:
        # The new scale needs nodes that are not free yet, and the scale without them is not permitted.
        _move_by_restart(transaction, job)
        return
    if not set(kept).intersection(job.trained):
        _move_by_restart(transaction, job)
        return
    _rescale(transaction, job, kept)


def _move_by_restart(transaction: Transaction, job: Job) -> None:
    reason = f"plan {job.plan_generation}: moves over a restart"
    transaction.stop(job, StopIntent.WAIT, JobReason.PLAN_MOVED, reason, job.wanted)


def _take_nodes(transaction: Transaction, job: Job) -> None:
    if job.state is JobState.WAITING and job.wanted and _may_start(transaction, job):
        _start(transaction, job)
    if job.state is JobState.RUNNING and not set(job.commanded) - set(job.wanted):
        gained = _gained_nodes(job)
        if gained and _are_free(transaction, gained):
            _rescale(transaction, job, job.commanded + gained)


def _may_start(transaction: Transaction, job: Job) -> bool:
    eligible = job.not_before is None or transaction.now >= job.not_before
    return eligible and not job.supervised and _are_free(transaction, job.wanted)


def _gained_nodes(job: Job) -> tuple[str, ...]:
    return tuple(node for node in job.wanted if node not in job.commanded)


def _are_free(transaction: Transaction, nodes: tuple[str, ...]) -> bool:
    holders = transaction.holders()
    return transaction.idle is not None and all(node in transaction.idle and node not in holders for node in nodes)


def _start(transaction: Transaction, job: Job) -> None:
    transaction.move(
        job,
        JobState.STARTING,
        JobReason.PLAN_STARTED,
        f"plan {job.plan_generation}: starts on {count_nodes(len(job.wanted))}",
        commanded=job.wanted,
        held=job.wanted,
        incarnation=job.incarnation + 1,
        supervised=True,
        serving=False,
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        preempted=False,
        not_before=None,
        done_since=None,
    )


def _rescale(transaction: Transaction, job: Job, nodes: tuple[str, ...]) -> None:
    transaction.notices.append((job.id, Notice.RESCALE_COMING))
    transaction.move(
        job,
        JobState.RESCALING,
        JobReason.PLAN_RESCALED,
        f"plan {job.plan_generation}: from {len(job.commanded)} to {count_nodes(len(nodes))}",
        commanded=nodes,
        held=job.held + tuple(node for node in nodes if node not in job.held),
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        rescales=job.rescales + 1,
    )
