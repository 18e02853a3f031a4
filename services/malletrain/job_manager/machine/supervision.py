"""Handles what supervisors say: the nodes their workers use, nodes that are free again, and their end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from malletrain.common.backoff import pause_after
from malletrain.job_manager.machine.jobs import Job, NodeRelease, StopIntent, within, without
from malletrain.job_manager.machine.scale_faults import describe, has_trained_elsewhere, is_scale_fault, with_fault
from malletrain.job_manager.machine.stimuli import NodesReleased, Outcome, SupervisorEnded, SupervisorSeen
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState

_NO_ROOM_SECONDS = 30.0
_LOST = "workers were lost, on: "
_NO_PROCESSES: dict[str, Any] = {
    "supervised": False,
    "serving": False,
    "taken_sequence": 0,
    "commanded": (),
    "confirmed": (),
    "held": (),
    "trained": (),
    "releases": (),
    "stop": None,
    "preempted": False,
    "good_since": None,
    "stalled_since": None,
    "idle_since": None,
    "deadlocked": False,
    "phase": "",
    "phase_since": None,
    "done_since": None,
    "worker_failures": 0,
    "scale_since": None,
}


def handle_supervisor_seen(transaction: Transaction, seen: SupervisorSeen) -> None:
    """Take over a supervisor's state. An earlier supervisor of the job is ignored, and so is a state that is overtaken.

    The answer to a command may arrive before an older state that the stream of states still carries.
    """
    job = _job_of(transaction, seen.job_id, seen.incarnation)
    if job is None or seen.commanded_sequence < job.taken_sequence:
        return
    in_release = {release.node for release in job.releases}
    # A worker on a node that is being released is about to end, whatever it still confirms.
    confirmed = within(job.held, seen.confirmed - in_release)
    job = _count_failures(transaction, job, sum(count for _, count in seen.failures))
    if job.stop is not None:
        confirmed = ()
    job = transaction.put(
        job,
        most_nodes=seen.most_nodes,
        serving=True,
        taken_sequence=seen.commanded_sequence,
        confirmed=confirmed,
        idle_since=_idle_since(transaction, job, seen),
        deadlocked=seen.deadlocked and seen.idle_seconds > 0,
    )
    if job.stop is not None:
        if _keeps_after_stop(job, seen) and transaction.policy.keep_supervisor_seconds:
            _wait_beside_supervisor(transaction, transaction.put(job, kept=True))
        return
    if job.kept and seen.commanded_sequence >= job.sequence:
        job = transaction.put(job, kept=False)
    # Before it has carried out the newest command, what it confirms is the scale before, and no loss of workers.
    if seen.confirmed_sequence < job.sequence:
        return
    if seen.confirmed == frozenset(job.commanded):
        if job.state is not JobState.RUNNING:
            job = _confirm_scale(transaction, job)
        _free_given_up_nodes(transaction, job, seen.occupied)
    elif job.state is JobState.RUNNING:
        names = ", ".join(sorted(set(job.commanded) - seen.confirmed)) or "none"
        lost = f"{_LOST}{names}"
        reason = seen.message or lost
        transaction.move(
            job,
            JobState.RESCALING,
            JobReason.WORKERS_LOST,
            reason,
            changed_at=transaction.now,
            scale_command=job.disturbed_command(transaction.now),
            last_failure=seen.message or lost,
        )
    elif seen.message and job.state is JobState.RESCALING and job.reason.startswith(_LOST):
        # The others have noticed it before the end of the worker was seen that they have lost.
        transaction.move(job, job.state, JobReason.WORKERS_LOST, seen.message, last_failure=seen.message)


def _count_failures(transaction: Transaction, job: Job, failures: int) -> Job:
    """A worker that fails while the scale changes makes that change longer: it must not count as its cost."""
    if failures <= job.worker_failures:
        return job
    return transaction.put(job, worker_failures=failures, scale_command=job.disturbed_command(transaction.now))


def _idle_since(transaction: Transaction, job: Job, seen: SupervisorSeen) -> float | None:
    if seen.idle_seconds <= 0:
        return None
    return transaction.now - seen.idle_seconds if job.idle_since is None else job.idle_since


def _keeps_after_stop(job: Job, seen: SupervisorSeen) -> bool:
    """Whether its supervisor stays after this very stop; a state from an earlier one may still arrive."""
    return seen.kept and job.stop is StopIntent.WAIT and seen.commanded_sequence >= job.sequence


def _wait_beside_supervisor(transaction: Transaction, job: Job) -> None:
    """Let a job that was stopped wait, if no process of it is left but its supervisor, which is kept.

    A release that is not answered yet may still reach that supervisor: it is waited for.
    """
    if job.kept and job.stop is StopIntent.WAIT and not job.releases:
        bare = transaction.set_aside(replace(job, **_NO_PROCESSES))
        transaction.move(bare, JobState.WAITING, JobReason.STOPPED, f"waits for nodes ({job.reason})")


def _confirm_scale(transaction: Transaction, job: Job) -> Job:
    first = job.state is JobState.STARTING
    return transaction.move(
        job,
        JobState.RUNNING,
        JobReason.CONFIRMED,
        f"trains on {job.in_words(len(job.commanded))}",
        preempted=False,
        trained=job.commanded,
        start_time=transaction.now if job.start_time is None else job.start_time,
        scale_since=transaction.now,
        good_since=transaction.now if first or job.good_since is None else job.good_since,
        # Monitor may have called it stalled during the change; the time that counts begins now.
        stalled_since=None if job.stalled_since is None else transaction.now,
        phase_since=None if job.phase_since is None else transaction.now,
    )


def _free_given_up_nodes(transaction: Transaction, job: Job, occupied: frozenset[str]) -> None:
    """Free the nodes that a shrink gave up and that have no worker any more; have the workers on the others ended.

    Where supervisors run as jobs' owners, their word is not enough: each of these nodes is released, and looked at.
    """
    if transaction.policy.distrusts_supervisors:
        occupied = frozenset(job.held)
    in_release = {release.node for release in job.releases}
    given_up = without(job.held, in_release.union(job.commanded))
    lingering = tuple(NodeRelease(node, transaction.now, left=False) for node in given_up if node in occupied)
    still_held = without(job.held, frozenset(given_up) - occupied)
    transaction.put(job, held=still_held, releases=job.releases + lingering)


def handle_nodes_released(transaction: Transaction, released: NodesReleased) -> None:
    """Free nodes that are confirmed to be without processes of the job."""
    job = _job_of(transaction, released.job_id, released.incarnation)
    if job is None:
        return
    # The answer may be late: what a newer command has given the job again is not free.
    free = set(released.nodes).difference(job.commanded)
    if job.stop is not None:
        free = set(released.nodes).intersection(release.node for release in job.releases)
    _note_releases(transaction, job, [release for release in job.releases if release.node in free])
    job = transaction.put(
        job,
        held=tuple(node for node in job.held if node not in free),
        releases=tuple(release for release in job.releases if release.node not in free),
    )
    _wait_beside_supervisor(transaction, job)


def _note_releases(transaction: Transaction, job: Job, releases: list[NodeRelease]) -> None:
    for release in releases:
        if release.left:
            seconds = max(0.0, transaction.now - release.since)
            reason = f"released: no process is left on {release.node}"
            transaction.add_event(job, JobReason.NODE_RELEASED, reason, seconds)


def handle_supervisor_ended(transaction: Transaction, ended: SupervisorEnded) -> None:
    """Decide the next state of a job whose supervisor has ended with all its processes."""
    job = _job_with_supervisor(transaction, ended.job_id, ended.incarnation)
    if job is None:
        return
    _note_releases(transaction, job, list(job.releases))
    bare = replace(job, **_NO_PROCESSES, kept=False)
    transaction.set_aside(bare)
    # What the job says of its own end counts more than what was to be done with it.
    if _has_completed(job, ended):
        _complete(transaction, bare, ended)
    elif job.stop is not None:
        _end_stopped(transaction, bare, job.stop, ended)
    elif job.kept:
        _go_on_without_kept(transaction, job, bare, ended)
    elif ended.no_room:
        _postpone(transaction, bare, ended)
    # Soon after a preemption the lost nodes are the likely cause, unless the script itself has failed.
    elif job.preempted and not (ended.failure is not None and ended.failure.by_script):
        reason = f"did not survive a preemption, waits for nodes ({_failure_text(ended)})"
        transaction.move(bare, JobState.WAITING, JobReason.PREEMPTION_NOT_SURVIVED, reason)
    else:
        _fail_by_workers(transaction, replace(bare, wanted=()), ended)


def _go_on_without_kept(transaction: Transaction, job: Job, bare: Job, ended: SupervisorEnded) -> None:
    """A supervisor that was kept has ended, before it had any process: that is no failure of the job."""
    if job.supervised:
        reason = f"its supervisor, kept without nodes, had ended ({_failure_text(ended)}); another one is started"
        transaction.move(bare, JobState.WAITING, JobReason.START_POSTPONED, reason)
    else:
        transaction.put(job, kept=False)


def _postpone(transaction: Transaction, job: Job, ended: SupervisorEnded) -> None:
    """Start a job later that could not be started, and not by its own fault."""
    pause = min(_NO_ROOM_SECONDS, transaction.policy.restart_backoff_max_seconds)
    reason = f"could not be started, tried again in {pause:g} s: {_failure_text(ended)}"
    when = transaction.now + pause
    transaction.move(job, JobState.WAITING, JobReason.START_POSTPONED, reason, wanted=(), not_before=when)


def _has_completed(job: Job, ended: SupervisorEnded) -> bool:
    # EXITED counts even if a stop is under way: the supervisor says that nobody had been asked to leave by then.
    return ended.completion is not None or ended.outcome is Outcome.EXITED or (job.target_reached and job.stop is None)


def _complete(transaction: Transaction, job: Job, ended: SupervisorEnded) -> None:
    if ended.completion is not None:
        samples = job.samples if ended.completion.samples is None else ended.completion.samples
        job = replace(job, samples=samples, metrics=dict(ended.completion.metrics))
        code, reason = JobReason.TRAINER_DONE, "the trainer says that it is done"
    elif job.target_reached:
        code, reason = JobReason.TARGET_REACHED, f"reached its target of {job.spec.target_samples} samples"
    else:
        code, reason = JobReason.EXITED, ended.message or "rank 0 ended with exit status 0"
    transaction.finish(job, JobState.COMPLETED, code, reason)


def _end_stopped(transaction: Transaction, job: Job, intent: StopIntent, ended: SupervisorEnded) -> None:
    if intent is StopIntent.CANCEL:
        transaction.finish(job, JobState.CANCELLED, JobReason.CANCELLED, job.reason)
    elif intent is StopIntent.COMPLETE:
        transaction.finish(job, JobState.COMPLETED, job.reason_code, job.reason)
    elif intent is StopIntent.RESTART:
        _fail(transaction, job, job.reason_code, job.reason, ended.log_tail, restart_code=JobReason.RESTARTED)
    else:
        transaction.move(job, JobState.WAITING, JobReason.STOPPED, f"waits for nodes ({job.reason})")


def _fail_by_workers(transaction: Transaction, job: Job, ended: SupervisorEnded) -> None:
    """Workers have failed. Where the script does so soon at this scale alone, other scales are tried."""
    what, failure = _failure_text(ended), ended.failure
    if failure is None:
        _fail(transaction, job, JobReason.WORKER_FAILED, what, ended.log_tail)
        return
    if not is_scale_fault(job, failure):
        _fail(transaction, job, JobReason.WORKER_FAILED, what, ended.log_tail, count=failure.count)
        return
    # A job that has trained at another scale may go on there: the fault is held against the scale, not the job.
    counts = job.spec.max_restarts == 0 or not has_trained_elsewhere(job, failure.scale)
    job = replace(job, scale_faults=with_fault(job, failure.scale, transaction.now))
    count = failure.count if counts else failure.count - 1
    ends = job.counted_failures + count > job.spec.max_restarts
    hint = describe(job, failure.scale, transaction.now, ends=ends)
    _fail(transaction, job, JobReason.WORKER_FAILED, what, ended.log_tail, count=count, hint=hint)


def _fail(
    transaction: Transaction,
    job: Job,
    code: JobReason,
    what: str,
    log_tail: tuple[str, ...],
    restart_code: JobReason | None = None,
    count: int = 1,
    hint: str = "",
) -> None:
    """Restart from the last checkpoint, or give up.

    A job that keeps its wanted nodes may start again at once: it hung rather than failed, and its time limit was pause
    enough. Another one waits twice as long as the time before.

    Args:
        job: The job, without processes.
        code: The failure, for scripts.
        what: The failure, for people.
        log_tail: The last lines of the job's log.
        restart_code: Code of a restart; None: that of the failure.
        count: How many failures this makes; 0: one that does not count.
        hint: What follows from it, for people; may be empty.
    """
    allowed = job.spec.max_restarts
    counted_failures = job.counted_failures + count
    hint = f"; {hint}" if hint else ""
    if counted_failures > allowed:
        head = f"{what}{hint}; restarted {job.counted_failures + count - 1} times before"
        reason = "\n".join((f"{head}; the last lines of its log:", *log_tail)) if log_tail else head
        transaction.finish(
            job,
            JobState.FAILED,
            code,
            reason,
            counted_failures=counted_failures,
            restarts=job.restarts + count - 1,
            last_failure=what,
        )
        return
    policy = transaction.policy
    failures = max(1, counted_failures)
    pause = pause_after(failures, policy.restart_backoff_seconds, policy.restart_backoff_max_seconds)
    soon = bool(job.wanted)
    when = "at once" if soon else f"in {pause:g} s"
    number = f"restart {counted_failures} of {allowed}" if count else "starts again"
    transaction.move(
        job,
        JobState.WAITING,
        restart_code or code,
        f"{number} {when}: {what}{hint}",
        counted_failures=counted_failures,
        restarts=job.restarts + max(1, count),
        last_failure=what,
        not_before=None if soon else transaction.now + pause,
    )


def _failure_text(ended: SupervisorEnded) -> str:
    return ended.message or "its processes ended, and it is not known why"


def _job_of(transaction: Transaction, job_id: str, incarnation: int) -> Job | None:
    job = transaction.jobs.get(job_id)
    return job if job is not None and job.supervised and job.incarnation == incarnation else None


def _job_with_supervisor(transaction: Transaction, job_id: str, incarnation: int) -> Job | None:
    job = transaction.jobs.get(job_id)
    return job if job is not None and job.has_supervisor and job.incarnation == incarnation else None
