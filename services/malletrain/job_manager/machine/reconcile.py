"""Reconciliation: compares the wanted, commanded and confirmed nodes of each job, and takes the next step."""

from __future__ import annotations

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.admitting import admit
from malletrain.job_manager.machine.dependencies import follow_dependencies
from malletrain.job_manager.machine.job_marks import JobMark, is_settled
from malletrain.job_manager.machine.jobs import Job, StopIntent, after_failure
from malletrain.job_manager.machine.node_lists import within, without
from malletrain.job_manager.machine.state import Notice
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState


def reconcile(transaction: Transaction, only: str | None = None) -> None:
    """Bring every job as far as possible now: shrinks and stops before growths and starts, admission last.

    Args:
        transaction: What has happened.
        only: Identifier of the one job that has changed, where nothing has happened that others may wait for: no node
            has moved, and none has become free.
    """
    # A settled job stays so until it is changed, and each step changes only the job that it is for.
    unsettled = [job.id for job in transaction.jobs.marked(JobMark.UNSETTLED)] if only is None else [only]
    for step in (_end_if_target_reached, _shrink_or_stop, _grow_or_start):
        for job in [transaction.jobs[name] for name in unsettled]:
            if not is_settled(job) and not job.state.final:
                step(transaction, job)
    follow_dependencies(transaction)
    admit(transaction)


def _end_if_target_reached(transaction: Transaction, job: Job) -> None:
    if not job.target_reached or not job.admitted:
        return
    reason = f"reached its target of {job.spec.target_samples} samples"
    if job.has_supervisor:
        transaction.stop(job, StopIntent.COMPLETE, JobReason.TARGET_REACHED, reason)
    else:
        transaction.finish(job, JobState.COMPLETED, JobReason.TARGET_REACHED, reason)


def _shrink_or_stop(transaction: Transaction, job: Job) -> None:
    if not job.supervised or job.stop is not None or job.keeps_scale:
        return
    if not job.wanted:
        reason = f"plan {job.plan_generation}: no nodes"
        transaction.stop(job, StopIntent.WAIT, JobReason.PLAN_NO_NODES, reason)
        return
    surplus = set(job.commanded) - set(job.wanted)
    if job.state is not JobState.RUNNING or not surplus:
        return
    kept = within(job.commanded, job.wanted)
    gained = _gained_nodes(job)
    if gained and _are_free(transaction, job, gained):
        kept += gained
    elif not job.may_have(len(kept)) and kept:
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


def _grow_or_start(transaction: Transaction, job: Job) -> None:
    if job.state is JobState.WAITING and job.wanted and _may_start(transaction, job):
        _start(transaction, job)
    if job.state is JobState.RUNNING and not (job.keeps_scale or set(job.commanded) - set(job.wanted)):
        gained = _gained_nodes(job)
        if gained and _are_free(transaction, job, gained):
            _rescale(transaction, job, job.commanded + gained)


def _may_start(transaction: Transaction, job: Job) -> bool:
    eligible = job.not_before is None or transaction.now >= job.not_before
    return eligible and not job.supervised and _are_free(transaction, job, job.wanted)


def _gained_nodes(job: Job) -> tuple[str, ...]:
    return without(job.wanted, job.commanded)


def _are_free(transaction: Transaction, job: Job, nodes: tuple[str, ...]) -> bool:
    holders, idle = transaction.jobs.held, transaction.idle
    return idle is not None and all(node_of(node) in idle and not holders.holder(job, node) for node in nodes)


def _start(transaction: Transaction, job: Job) -> None:
    transaction.move(
        job,
        JobState.STARTING,
        JobReason.PLAN_STARTED,
        f"plan {job.plan_generation}: starts on {job.in_words(len(job.wanted))}{after_failure(job)}",
        commanded=job.wanted,
        held=job.wanted,
        incarnation=job.incarnation if job.kept else job.incarnation + 1,
        supervised=True,
        serving=job.kept,
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        scale_command=job.commanding(len(job.wanted), transaction.now),
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
        f"plan {job.plan_generation}: from {len(job.commanded)} to {job.in_words(len(nodes))}",
        commanded=nodes,
        held=job.held + without(nodes, job.held),
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        scale_command=job.commanding(len(nodes), transaction.now),
        rescales=job.rescales + 1,
    )
