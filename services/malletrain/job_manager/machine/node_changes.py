"""Nodes join and leave. Release first, optimise after: a node that leaves is taken from its job in the same step."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.jobs import Job, NodeRelease, StopIntent
from malletrain.job_manager.machine.node_lists import within, without
from malletrain.job_manager.machine.state import Notice
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState


def replace_idle_set(transaction: Transaction, nodes: frozenset[str]) -> None:
    """Take over the whole idle set. A node that a job uses and that is not in the set has left; it counts from now."""
    used = {node_of(name) for job in transaction.jobs.values() for name in (*job.held, *job.wanted)}
    transaction.idle = nodes
    _remove_nodes(transaction, frozenset(used - nodes), transaction.now)


def note_gpus(transaction: Transaction, joined: frozenset[str], gpus: Mapping[str, int]) -> None:
    """Take over how many GPUs nodes have that join. Most have as many as before: then nothing is copied."""
    news = {name: gpus.get(name, 0) for name in joined if gpus.get(name, 0) != transaction.gpus.get(name, 0)}
    if news:
        transaction.gpus = {**transaction.gpus, **news}


def change_idle_set(transaction: Transaction, joined: frozenset[str], left: frozenset[str], event_time: float) -> None:
    """Take over one event of the idle set. While the whole set is unknown, only nodes that left are handled."""
    if transaction.idle is not None:
        # Each of the two copies the whole set.
        if not left.isdisjoint(transaction.idle):
            transaction.idle -= left
        if not joined <= transaction.idle:
            transaction.idle |= joined
    _remove_nodes(transaction, left, event_time)


def _remove_nodes(transaction: Transaction, left: frozenset[str], since: float) -> None:
    for job in transaction.jobs.on_nodes(left):
        lost = frozenset(name for name in (*job.held, *job.wanted) if node_of(name) in left)
        if lost:
            _remove_lost(transaction, job, lost, since)


def _remove_lost(transaction: Transaction, job: Job, lost: frozenset[str], since: float) -> None:
    wanted = without(job.wanted, lost)
    if not job.may_have(len(wanted)):
        wanted = ()
    job = transaction.put(
        job,
        releases=_with_lost(job, lost, since),
        confirmed=without(job.confirmed, lost),
        trained=without(job.trained, lost),
    )
    taken = sorted(lost.intersection(job.commanded))
    if not taken:
        keeps = job.supervised and job.stop is None and job.wanted and not wanted
        transaction.put(job, wanted=_max_part(transaction, job, job.commanded) if keeps else wanted)
        return
    reason = f"preempted: {', '.join(taken)} left"
    left_over = without(job.commanded, lost)
    job = transaction.put(job, preemptions=job.preemptions + 1)
    if job.stop is None:
        _shrink_or_stop(transaction, transaction.put(job, preempted=True), reason, left_over, wanted)
        return
    job = transaction.put(job, commanded=left_over, wanted=wanted)
    transaction.note(job, JobReason.PREEMPTED, f"{reason}; already stopping: {job.reason}")


def _shrink_or_stop(
    transaction: Transaction, job: Job, reason: str, left_over: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    still_wanted = within(left_over, wanted)
    kept = _max_part(transaction, job, still_wanted) or _max_part(transaction, job, left_over)
    if not kept:
        why = f"{reason}; {len(left_over)} remain, its smallest scale is {job.spec.smallest}"
        transaction.stop(job, StopIntent.WAIT, JobReason.PREEMPTED_BELOW_MINIMUM, why, wanted, left_over)
        return
    if job.state is not JobState.STARTING and not set(kept).intersection(job.trained):
        # Only new workers remain. They do not have the state yet, and elastic training can't go on from them.
        why = f"{reason}; no node that has trained remains, starts again from the last checkpoint"
        transaction.stop(job, StopIntent.WAIT, JobReason.PREEMPTED_STATE_LOST, why, wanted or kept, left_over)
        return
    state = JobState.STARTING if job.state is JobState.STARTING else JobState.RESCALING
    transaction.move(
        job,
        state,
        JobReason.PREEMPTED,
        reason,
        wanted=wanted or kept,
        commanded=kept,
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        scale_command=job.commanding(len(kept), transaction.now),
        rescales=job.rescales + (state is JobState.RESCALING),
    )
    transaction.notices.append((job.id, Notice.RELEASE_REQUESTED))


def _max_part(transaction: Transaction, job: Job, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The largest permitted scale on nodes that no other job wants; nodes that have trained are taken first."""
    wanted, trained = transaction.jobs.wanted, frozenset(job.trained)
    free = sorted((node for node in nodes if not wanted.has_rival(job, node)), key=lambda node: node not in trained)
    return tuple(free[: job.max_within(len(free))])


def _with_lost(job: Job, lost: frozenset[str], since: float) -> tuple[NodeRelease, ...]:
    """The job's releases with those of lost nodes. A node that a shrink was releasing has now left."""
    known = {release.node: release for release in job.releases}
    for node in lost.intersection(job.held):
        earlier = known.get(node)
        if earlier is None or not earlier.left:
            known[node] = NodeRelease(node, since, left=True)
    return tuple(known[node] for node in sorted(known))
