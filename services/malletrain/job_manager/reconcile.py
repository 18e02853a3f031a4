"""The level-triggered part: compare what is wanted, commanded and confirmed, and take the next step."""

from __future__ import annotations

from malletrain.job_manager.admission import admit
from malletrain.job_manager.jobs import Job, StopIntent, nodes_in_words
from malletrain.job_manager.states import JobState
from malletrain.job_manager.stopping import finish, stop
from malletrain.job_manager.world import Notice, Turn


def reconcile(turn: Turn) -> None:
    """Bring every job as far as it can go now: shrinks and stops before growths and starts."""
    for job in turn.active():
        _end_if_reached(turn, job)
    for job in turn.active():
        _give_up_nodes(turn, job)
    for job in turn.active():
        _take_nodes(turn, job)
    admit(turn)


def _end_if_reached(turn: Turn, job: Job) -> None:
    if not job.target_reached or not job.admitted:
        return
    reason = f"reached its target of {job.spec.target_samples} samples"
    if job.supervised:
        stop(turn, job, StopIntent.COMPLETE, reason)
    else:
        finish(turn, job, JobState.COMPLETED, reason)


def _give_up_nodes(turn: Turn, job: Job) -> None:
    if not job.supervised or job.stop is not None:
        return
    if not job.wanted:
        stop(turn, job, StopIntent.WAIT, f"plan {job.plan_generation}: no nodes")
        return
    surplus = set(job.commanded) - set(job.wanted)
    if job.state is not JobState.RUNNING or not surplus:
        return
    kept = tuple(node for node in job.commanded if node in job.wanted)
    gained = _gained(job)
    if gained and _free(turn, gained):
        kept += gained
    elif not job.spec.permits(len(kept)) and kept:
        # The new scale needs nodes that are not free yet, and the scale between is not permitted.
        stop(turn, job, StopIntent.WAIT, f"plan {job.plan_generation}: moves over a restart", job.wanted)
        return
    if not set(kept).intersection(job.trained):
        stop(turn, job, StopIntent.WAIT, f"plan {job.plan_generation}: moves over a restart", job.wanted)
        return
    _command(turn, job, kept)


def _take_nodes(turn: Turn, job: Job) -> None:
    if job.state is JobState.WAITING and job.wanted and _may_start(turn, job):
        _start(turn, job)
    if job.state is JobState.RUNNING and not set(job.commanded) - set(job.wanted):
        gained = _gained(job)
        if gained and _free(turn, gained):
            _command(turn, job, job.commanded + gained)


def _may_start(turn: Turn, job: Job) -> bool:
    eligible = job.not_before is None or turn.now >= job.not_before
    return eligible and not job.supervised and _free(turn, job.wanted)


def _gained(job: Job) -> tuple[str, ...]:
    return tuple(node for node in job.wanted if node not in job.commanded)


def _free(turn: Turn, nodes: tuple[str, ...]) -> bool:
    holders = turn.holders()
    return turn.idle is not None and all(node in turn.idle and node not in holders for node in nodes)


def _start(turn: Turn, job: Job) -> None:
    turn.move(
        job,
        JobState.STARTING,
        f"plan {job.plan_generation}: starts on {nodes_in_words(len(job.wanted))}",
        commanded=job.wanted,
        held=job.wanted,
        incarnation=job.incarnation + 1,
        supervised=True,
        serving=False,
        sequence=job.sequence + 1,
        changed_at=turn.now,
        preempted=False,
        not_before=None,
        done_since=None,
    )


def _command(turn: Turn, job: Job, nodes: tuple[str, ...]) -> None:
    turn.notices.append((job.id, Notice.RESCALE_COMING))
    turn.move(
        job,
        JobState.RESCALING,
        f"plan {job.plan_generation}: from {len(job.commanded)} to {nodes_in_words(len(nodes))}",
        commanded=nodes,
        held=job.held + tuple(node for node in nodes if node not in job.held),
        sequence=job.sequence + 1,
        changed_at=turn.now,
        rescales=job.rescales + 1,
    )
