"""Nodes come and go. Release first, optimise after: a node that leaves is taken out of its job in the same step."""

from __future__ import annotations

from malletrain.job_manager.jobs import Job, Release, StopIntent
from malletrain.job_manager.states import JobState
from malletrain.job_manager.stopping import stop
from malletrain.job_manager.world import Notice, Turn


def see_idle_set(turn: Turn, nodes: frozenset[str]) -> None:
    """Take over the whole idle set; a node that a job uses and that is not in it has left unseen, now at the latest."""
    used = {node for job in turn.jobs.values() for node in (*job.held, *job.wanted)}
    turn.idle = nodes
    _leave(turn, frozenset(used - nodes), turn.now)


def change_idle_set(turn: Turn, joined: frozenset[str], left: frozenset[str], event_time: float) -> None:
    """Take over one event of the idle set. Before the whole set was seen, only its leaves count."""
    if turn.idle is not None:
        turn.idle = (turn.idle - left) | joined
    _leave(turn, left, event_time)


def _leave(turn: Turn, left: frozenset[str], since: float) -> None:
    for job in turn.active():
        lost = left.intersection((*job.held, *job.wanted))
        if lost:
            _take_from(turn, job, lost, since)


def _take_from(turn: Turn, job: Job, lost: frozenset[str], since: float) -> None:
    wanted = _without(job.wanted, lost)
    if not job.spec.permits(len(wanted)):
        wanted = ()
    job = turn.put(
        job,
        releases=_with_leaves(job, lost, since),
        confirmed=_without(job.confirmed, lost),
        trained=_without(job.trained, lost),
    )
    taken = sorted(lost.intersection(job.commanded))
    if not taken:
        keeps = job.supervised and job.stop is None and job.wanted and not wanted
        turn.put(job, wanted=_part_of(turn, job, job.commanded) if keeps else wanted)
        return
    job = turn.put(job, preemptions=job.preemptions + 1)
    reason = f"preempted: {', '.join(taken)} left"
    left_over = _without(job.commanded, lost)
    if job.stop is not None:
        turn.move(job, JobState.STOPPING, f"{reason}; {job.reason}", commanded=left_over, wanted=wanted)
        return
    _shrink_or_stop(turn, turn.put(job, preempted=True), reason, left_over, wanted)


def _shrink_or_stop(turn: Turn, job: Job, reason: str, left_over: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    still_wanted = tuple(node for node in left_over if node in wanted)
    kept = _part_of(turn, job, still_wanted) or _part_of(turn, job, left_over)
    if not kept:
        why = f"{reason}; {len(left_over)} remain, its smallest scale is {job.spec.smallest}"
        stop(turn, job, StopIntent.WAIT, why, wanted, left_over)
        return
    if job.state is not JobState.STARTING and not set(kept).intersection(job.trained):
        # Only newcomers remain, and they have no state yet: elastic training can't go on from them.
        why = f"{reason}; no node that has trained remains, starts again from the last checkpoint"
        stop(turn, job, StopIntent.WAIT, why, wanted or kept, left_over)
        return
    state = JobState.STARTING if job.state is JobState.STARTING else JobState.RESCALING
    turn.move(
        job,
        state,
        reason,
        wanted=wanted or kept,
        commanded=kept,
        sequence=job.sequence + 1,
        changed_at=turn.now,
        rescales=job.rescales + (state is JobState.RESCALING),
    )
    turn.notices.append((job.id, Notice.RELEASE_REQUESTED))


def _part_of(turn: Turn, job: Job, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The largest permitted part of nodes that no other job is meant to get; those that have trained come first."""
    others = {node for other in turn.active() if other.id != job.id for node in other.wanted}
    free = sorted((node for node in nodes if node not in others), key=lambda node: node not in job.trained)
    return tuple(free[: job.spec.largest_within(len(free))])


def _with_leaves(job: Job, lost: frozenset[str], since: float) -> tuple[Release, ...]:
    known = {release.node: release for release in job.releases}
    for node in lost.intersection(job.held):
        earlier = known.get(node)
        if earlier is None or not earlier.left:
            known[node] = Release(node, since, left=True)
    return tuple(known[node] for node in sorted(known))


def _without(nodes: tuple[str, ...], lost: frozenset[str]) -> tuple[str, ...]:
    return tuple(node for node in nodes if node not in lost)
