"""The state machine of JobManager: state and stimulus in; new state, journal and effects out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.admitting import place_reason
from malletrain.job_manager.machine.dependencies import Unfinished, waiting_reason
from malletrain.job_manager.machine.effects import Effect, required_effects
from malletrain.job_manager.machine.hangs import is_long
from malletrain.job_manager.machine.job_marks import JobMark
from malletrain.job_manager.machine.jobs import (
    Dependencies,
    Job,
    JobSpec,
    NodeRelease,
    StopIntent,
    within,
    without,
)
from malletrain.job_manager.machine.metering import meter
from malletrain.job_manager.machine.plans import apply_plan, first_whole, reconcile
from malletrain.job_manager.machine.sharing import keep_ledger
from malletrain.job_manager.machine.state import JobEvent, ManagerPolicy, ManagerState, Notice, Omission
from malletrain.job_manager.machine.stimuli import (
    Cancelled,
    ClockStepped,
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    PlanReceived,
    Progressed,
    ProgressNoted,
    Shutdown,
    Stimulus,
    Submitted,
    SupervisorEnded,
    SupervisorSeen,
    Ticked,
    TrainerDone,
    WeightSet,
)
from malletrain.job_manager.machine.supervision import (
    handle_nodes_released,
    handle_supervisor_ended,
    handle_supervisor_seen,
)
from malletrain.job_manager.machine.time_limits import check_time_limits, move_times
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.machine.usage import UsageRow
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import NotFoundError


@dataclass(frozen=True)
class TransactionResult:
    """The result of one stimulus.

    Attributes:
        state: What JobManager knows now.
        changed: Jobs that changed, as they are now. Those in a final state are no longer part of the state.
        events: New rows of the journal.
        effects: All effects that the state requires now, old and new. An effect is required until a stimulus shows it.
        notices: What trainers are told, as (job identifier, notice, number of nodes from then on). Each is sent once
            and may be lost.
        rescaled: For a plan: identifiers of the jobs whose scale it changes.
        omitted: For a plan that is applied in part: what was left out.
        usage: Rows of the usage that are new or differ.
    """

    state: ManagerState
    changed: tuple[Job, ...] = ()
    events: tuple[JobEvent, ...] = ()
    effects: tuple[Effect, ...] = ()
    notices: tuple[tuple[str, Notice, int], ...] = ()
    rescaled: tuple[str, ...] = ()
    omitted: tuple[Omission, ...] = ()
    usage: tuple[UsageRow, ...] = ()


def advance(state: ManagerState, stimulus: Stimulus, now: float, policy: ManagerPolicy) -> TransactionResult:
    """Apply one stimulus.

    Args:
        state: What JobManager knows; not changed.
        stimulus: What happened.
        now: Seconds since the epoch.
        policy: Limits, graces and pauses.

    Raises:
        StalePlanError: the stimulus is a plan that does not fit the state.
        NotFoundError: the stimulus is for a job that does not exist or is in a final state.
        IllegalTransitionError: there is a defect in this package.
    """
    transaction = Transaction(state, policy, now)
    rescaled, omitted = _apply_stimulus(transaction, stimulus)
    if not isinstance(stimulus, Shutdown | ProgressNoted):
        # A thousand jobs report progress while hundreds wait for nodes: those are looked at when a node moves.
        reconcile(transaction, stimulus.job_id if isinstance(stimulus, Progressed) else None)
    if not isinstance(stimulus, ProgressNoted):
        keep_ledger(transaction, weigh=not isinstance(stimulus, Ticked | Progressed))
        meter(transaction, state.jobs, nodes_told=isinstance(stimulus, IdleSetSeen))
    after = transaction.state()
    return TransactionResult(
        state=after,
        changed=tuple(transaction.changed.values()),
        events=tuple(transaction.events),
        effects=required_effects(transaction.jobs.marked(JobMark.COMMANDED), policy),
        notices=tuple(transaction.notices),
        rescaled=rescaled,
        omitted=omitted,
        usage=tuple(transaction.usage_rows.values()),
    )


def _apply_stimulus(transaction: Transaction, stimulus: Stimulus) -> tuple[tuple[str, ...], tuple[Omission, ...]]:
    """Apply it; for a plan, the jobs whose scale it changes, and what was left out."""
    match stimulus:
        case Submitted(specs, owner, instance_ids):
            enqueue(transaction, specs, owner, instance_ids)
        case Cancelled(job_id, by):
            _cancel(transaction, _require_job(transaction, job_id), by)
        case WeightSet(job_id, weight, by):
            _set_weight(transaction, _require_job(transaction, job_id), weight, by)
        case IdleSetSeen(nodes, gpus):
            transaction.gpus = gpus
            replace_idle_set(transaction, nodes)
        case NodesChanged(joined, left, event_time, gpus):
            note_gpus(transaction, joined, gpus)
            change_idle_set(transaction, joined, left, event_time)
        case PlanReceived():
            return apply_plan(transaction, stimulus)
        case SupervisorSeen():
            handle_supervisor_seen(transaction, stimulus)
        case NodesReleased():
            handle_nodes_released(transaction, stimulus)
        case SupervisorEnded():
            handle_supervisor_ended(transaction, stimulus)
        case Progressed():
            handle_progress(transaction, _require_job(transaction, stimulus.job_id), stimulus)
        case ProgressNoted(samples):
            note_progress(transaction, samples)
        case TrainerDone(job_id):
            handle_trainer_done(transaction, _require_job(transaction, job_id))
        case Ticked():
            check_time_limits(transaction)
        case ClockStepped(seconds):
            move_times(transaction, seconds)
        case Shutdown():
            _shut_down(transaction)
    return (), ()


def _cancel(transaction: Transaction, job: Job, by: str) -> None:
    reason = "cancelled by its owner" if by in ("", job.owner) else f"cancelled by {by}"
    if job.has_supervisor:
        transaction.stop(job, StopIntent.CANCEL, JobReason.CANCELLED, reason)
    else:
        transaction.finish(job, JobState.CANCELLED, JobReason.CANCELLED, reason)


def _set_weight(transaction: Transaction, job: Job, weight: float, by: str) -> None:
    if job.spec.weight == weight:
        return
    who = "its owner" if by == job.owner else by
    changed = transaction.put(job, spec=replace(job.spec, weight=weight))
    transaction.add_event(changed, JobReason.WEIGHT_SET, f"weight {weight:g} in place of {job.spec.weight:g}, by {who}")


def _shut_down(transaction: Transaction) -> None:
    transaction.idle = None  # nothing may start any more
    for job in transaction.active():
        if job.supervised:
            reason = "JobManager ends and leaves no processes behind"
            transaction.stop(job, StopIntent.WAIT, JobReason.SHUTDOWN, reason)


def _require_job(transaction: Transaction, job_id: str) -> Job:
    job = transaction.jobs.get(job_id)
    if job is None:
        raise NotFoundError(f"no job {job_id} that has not ended")
    return job


def enqueue(
    transaction: Transaction, specs: tuple[JobSpec, ...], owner: str, instance_ids: tuple[str, ...] = ()
) -> None:
    """Put jobs of an owner at the end of the queue. Members of a fleet have been submitted together.

    Of their dependencies, those that have ended hold: whoever submits has looked at how they ended.
    """
    first = transaction.last_number + 1
    waits = _waits(transaction, specs)
    for spec, instance_id in zip(specs, instance_ids or ("",) * len(specs), strict=True):
        transaction.last_number += 1
        waits_for = waits.get(spec.dependencies, ())
        reason = place_reason(transaction.policy.max_parallel, spec.array)
        transaction.add(
            Job(
                number=transaction.last_number,
                spec=spec,
                state=JobState.QUEUED,
                reason_code=JobReason.DEPENDENCY if waits_for else JobReason.SUBMITTED,
                reason=waiting_reason(spec.dependencies, waits_for) if waits_for else reason,
                create_time=transaction.now,
                update_time=transaction.now,
                owner=owner,
                instance_id=instance_id,
                fleet_number=None if spec.fleet is None else first,
                array_number=None if spec.array is None else first,
                waits_for=waits_for,
            )
        )


def _waits(transaction: Transaction, specs: tuple[JobSpec, ...]) -> dict[Dependencies, tuple[str, ...]]:
    """Which of their dependencies have not ended: the jobs of a submission often have the same."""
    distinct = {spec.dependencies for spec in specs if spec.dependencies}
    unfinished = Unfinished(transaction.active() if distinct else ())
    return {entry: tuple(name for name in entry.names if name in unfinished) for entry in distinct}


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


def change_idle_set(
    transaction: Transaction, joined: frozenset[str], left_nodes: frozenset[str], event_time: float
) -> None:
    """Take over one event of the idle set. While the whole set is unknown, only nodes that left are handled."""
    if transaction.idle is not None:
        # Each of the two copies the whole set.
        if not left_nodes.isdisjoint(transaction.idle):
            transaction.idle -= left_nodes
        if not joined <= transaction.idle:
            transaction.idle |= joined
    _remove_nodes(transaction, left_nodes, event_time)


def _remove_nodes(transaction: Transaction, left_nodes: frozenset[str], since: float) -> None:
    for job in transaction.jobs.on_nodes(left_nodes):
        lost = frozenset(name for name in (*job.held, *job.wanted) if node_of(name) in left_nodes)
        if lost:
            _remove_lost(transaction, job, lost, since)


def _remove_lost(transaction: Transaction, job: Job, lost: frozenset[str], since: float) -> None:
    wanted = job.whole(job.wanted, without(job.wanted, lost))
    if not job.may_have(len(wanted)):
        wanted = ()
    job = transaction.put(
        job,
        releases=_with_lost(job, lost, since),
        confirmed=without(job.confirmed, lost),
        trained=without(job.trained, lost),
    )
    lost_hosts = sorted(lost.intersection(job.commanded))
    if not lost_hosts:
        # A growth that can't come any more. The job trains on, and what it has stays its own until the next plan.
        keeps = job.supervised and job.stop is None and job.wanted and not wanted
        transaction.put(job, wanted=_max_part(transaction, job, job.commanded) if keeps else wanted)
        return
    reason = f"preempted: {', '.join(lost_hosts)} left"
    left_over = without(job.commanded, lost)
    job = transaction.put(job, preemptions=job.preemptions + 1)
    if job.stop is None:
        _go_on_or_stop(transaction, transaction.put(job, preempted=True), reason, left_over, wanted)
        return
    job = transaction.put(job, commanded=left_over, wanted=wanted)
    transaction.add_event(job, JobReason.PREEMPTED, f"{reason}; already stopping: {job.reason}")


def _go_on_or_stop(
    transaction: Transaction, job: Job, reason: str, left_over: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    still_wanted = within(left_over, wanted)
    if job.spec.grouped_nodes > 1:
        still_wanted = job.whole(wanted, left_over)  # the plan's order says which nodes make a replica
    # What the newest plan wants for it comes first: then the next command is not another change.
    staying = _max_part(transaction, job, still_wanted) or _max_part(
        transaction, job, job.whole(job.commanded, left_over)
    )
    if not staying:
        complete = len(job.whole(job.commanded, left_over))
        parts = f", {complete} of them in whole replicas" if complete < len(left_over) else ""
        why = f"{reason}; {len(left_over)} remain{parts}, its smallest scale is {job.spec.smallest}"
        transaction.stop(job, StopIntent.WAIT, JobReason.PREEMPTED_BELOW_MINIMUM, why, wanted, left_over)
        return
    if job.state is not JobState.STARTING and not set(staying).intersection(job.trained):
        # Only new workers remain. They do not have the state yet, and elastic training can't go on from them.
        why = f"{reason}; no node that has trained remains, starts again from the last checkpoint"
        transaction.stop(job, StopIntent.WAIT, JobReason.PREEMPTED_STATE_LOST, why, wanted or staying, left_over)
        return
    # A job that has not begun to train loses nothing but nodes: its start goes on, and is no rescale.
    state = JobState.STARTING if job.state is JobState.STARTING else JobState.RESCALING
    transaction.move(
        job,
        state,
        JobReason.PREEMPTED,
        reason,
        wanted=wanted or staying,
        commanded=staying,
        sequence=job.sequence + 1,
        changed_at=transaction.now,
        scale_command=job.commanding(len(staying), transaction.now),
        rescales=job.rescales + (state is JobState.RESCALING),
    )
    transaction.notices.append((job.id, Notice.RELEASE_REQUESTED, len(staying)))


def _max_part(transaction: Transaction, job: Job, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The largest permitted scale on nodes that no other job wants; nodes that have trained are taken first."""
    wanted = transaction.jobs.wanted
    free = job.whole(nodes, [node for node in nodes if not wanted.has_rival(job, node)])
    return first_whole(job, free, frozenset(job.trained))


def _with_lost(job: Job, lost: frozenset[str], since: float) -> tuple[NodeRelease, ...]:
    """The job's releases with those of lost nodes.

    A node that a shrink was releasing has now left: from this moment on the main scheduler waits for it.
    """
    known = {release.node: release for release in job.releases}
    for node in lost.intersection(job.held):
        earlier = known.get(node)
        if earlier is None or not earlier.left:
            known[node] = NodeRelease(node, since, left=True)
    return tuple(known[node] for node in sorted(known))


def handle_progress(transaction: Transaction, job: Job, seen: Progressed) -> None:
    """Take over samples, whether the job's saves fail, and whether it is silent, with or without a phase for it."""
    # While its scale changes, a job is silent by our own doing: that counts from the command on, not before.
    since = max(transaction.now - seen.seconds, job.changed_at)
    silent = job.supervised and is_long(job, seen)
    in_phase = silent and bool(seen.phase)
    stalled_since = since if job.stalled_since is None else job.stalled_since
    transaction.put(
        job,
        samples=seen.samples,
        stalled_since=stalled_since if silent and not in_phase else None,
        phase=seen.phase if in_phase else "",
        phase_since=since if in_phase else None,
        positions_known=seen.positions_known,
        save_error=job.save_error if seen.save_error is None else seen.save_error,
    )


def note_progress(transaction: Transaction, samples: tuple[tuple[str, int], ...]) -> None:
    """Take over samples that decide nothing."""
    for job_id, count in samples:
        job = transaction.jobs.get(job_id)
        if job is not None:
            transaction.put(job, samples=count)


def handle_trainer_done(transaction: Transaction, job: Job) -> None:
    """Note that the trainer has said that it is done. Its processes are expected to end by themselves soon."""
    if job.supervised and job.done_since is None:
        transaction.put(job, done_since=transaction.now)
