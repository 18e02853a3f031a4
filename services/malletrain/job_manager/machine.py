"""One step of JobManager: what it knows and what happened in, what it knows then and what is to be done out."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.job_manager.admission import enqueue
from malletrain.job_manager.effects import Effect, required_effects
from malletrain.job_manager.jobs import Job, StopIntent
from malletrain.job_manager.leaving import change_idle_set, see_idle_set
from malletrain.job_manager.plans import apply_plan
from malletrain.job_manager.reconcile import reconcile
from malletrain.job_manager.stimuli import (
    Cancelled,
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    PlanReceived,
    Progressed,
    Shutdown,
    Stimulus,
    Submitted,
    SupervisorEnded,
    SupervisorSeen,
    Ticked,
    TrainerDone,
)
from malletrain.job_manager.stopping import cancel, stop
from malletrain.job_manager.supervision import see_end, see_released, see_supervisor
from malletrain.job_manager.watchdogs import see_done, see_progress, watch
from malletrain.job_manager.world import JobEvent, Notice, Policy, Turn, World
from malletrain.runtime.errors import NotFoundError


@dataclass(frozen=True)
class Step:
    """The result of one stimulus.

    Attributes:
        world: What JobManager knows now.
        changed: Jobs that changed, as they are now; those in a final state are no longer in the world.
        events: New rows of the journal.
        effects: All that the outside world must be made to do, asked for again until it is seen to be done.
        notices: What trainers are told, once and without waiting.
        rescaled: For a plan: jobs whose scale changes by it.
    """

    world: World
    changed: tuple[Job, ...] = ()
    events: tuple[JobEvent, ...] = ()
    effects: tuple[Effect, ...] = ()
    notices: tuple[tuple[str, Notice], ...] = ()
    rescaled: tuple[str, ...] = ()


def advance(world: World, stimulus: Stimulus, now: float, policy: Policy) -> Step:
    """Take one stimulus in.

    Args:
        world: What JobManager knows; not changed.
        stimulus: What happened.
        now: Seconds since the epoch.
        policy: Limits and places.

    Raises:
        StalePlanError: the stimulus is a plan that does not fit the present.
        NotFoundError: the stimulus is for a job that does not exist or is in a final state.
    """
    turn = Turn(world, policy, now)
    rescaled = _take_in(turn, stimulus)
    if not isinstance(stimulus, Shutdown):
        reconcile(turn)
    after = turn.world()
    return Step(
        world=after,
        changed=tuple(turn.changed.values()),
        events=tuple(turn.events),
        effects=required_effects(after.jobs.values(), policy),
        notices=tuple(turn.notices),
        rescaled=rescaled,
    )


def _take_in(turn: Turn, stimulus: Stimulus) -> tuple[str, ...]:
    match stimulus:
        case Submitted(specs):
            enqueue(turn, specs)
        case Cancelled(job_id):
            cancel(turn, _known(turn, job_id))
        case IdleSetSeen(nodes):
            see_idle_set(turn, nodes)
        case NodesChanged(joined, left, event_time):
            change_idle_set(turn, joined, left, event_time)
        case PlanReceived():
            return apply_plan(turn, stimulus)
        case SupervisorSeen():
            see_supervisor(turn, stimulus)
        case NodesReleased():
            see_released(turn, stimulus)
        case SupervisorEnded():
            see_end(turn, stimulus)
        case Progressed(job_id, samples, stalled):
            see_progress(turn, _known(turn, job_id), samples, stalled)
        case TrainerDone(job_id):
            see_done(turn, _known(turn, job_id))
        case Ticked():
            watch(turn)
        case Shutdown():
            _shut_down(turn)
    return ()


def _shut_down(turn: Turn) -> None:
    turn.idle = None  # nothing may start any more
    for job in turn.active():
        if job.supervised:
            stop(turn, job, StopIntent.WAIT, "JobManager ends and leaves no processes behind")


def _known(turn: Turn, job_id: str) -> Job:
    job = turn.jobs.get(job_id)
    if job is None:
        raise NotFoundError(f"no job {job_id} that has not ended")
    return job
