"""The state machine of JobManager: state and stimulus in; new state, journal and effects out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from malletrain.job_manager.machine.effects import Effect, required_effects
from malletrain.job_manager.machine.enqueuing import enqueue
from malletrain.job_manager.machine.job_marks import JobMark
from malletrain.job_manager.machine.jobs import Job, StopIntent
from malletrain.job_manager.machine.metering import meter
from malletrain.job_manager.machine.node_changes import change_idle_set, note_gpus, replace_idle_set
from malletrain.job_manager.machine.plans import apply_plan
from malletrain.job_manager.machine.reconcile import reconcile
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
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.machine.usage import UsageRow
from malletrain.job_manager.machine.watchdogs import (
    check_time_limits,
    handle_progress,
    handle_trainer_done,
    move_times,
    note_progress,
)
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
        notices: What trainers are told, as (job identifier, notice). Each is sent once and may be lost.
        rescaled: For a plan: identifiers of the jobs whose scale it changes.
        omitted: For a plan that is applied in part: what was left out.
        usage: Rows of the usage that are new or differ.
    """

    state: ManagerState
    changed: tuple[Job, ...] = ()
    events: tuple[JobEvent, ...] = ()
    effects: tuple[Effect, ...] = ()
    notices: tuple[tuple[str, Notice], ...] = ()
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
    transaction.note(changed, JobReason.WEIGHT_SET, f"weight {weight:g} in place of {job.spec.weight:g}, by {who}")


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
