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
    releases = _with_leaves(job, lost, since)
    if not lost.intersection(job.commanded):
        stays = job.commanded if job.supervised and job.stop is None and job.wanted else ()
        turn.put(job, wanted=wanted or stays, releases=releases)
        return
    job = turn.put(job, releases=releases, confirmed=_without(job.confirmed, lost), preemptions=job.preemptions + 1)
    names = ", ".join(sorted(lost.intersection(job.commanded)))
    left_over = _without(job.commanded, lost)
    if job.stop is not None:
        turn.move(job, JobState.STOPPING, f"preempted: {names} left; {job.reason}", commanded=left_over, wanted=wanted)
        return
    _shrink_or_stop(turn, job, f"preempted: {names} left", left_over, wanted)


def _shrink_or_stop(turn: Turn, job: Job, reason: str, left_over: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    spec = job.spec
    scale = spec.largest_within(len(left_over))
    job = turn.put(job, preempted=True)
    if scale == 0:
        why = f"{reason}; {len(left_over)} left, below the smallest scale of {spec.smallest}"
        turn.put(stop(turn, job, StopIntent.WAIT, why), commanded=left_over)
        return
    kept = _first_choice(job, left_over, wanted)[:scale]
    if job.state is not JobState.STARTING and not set(kept).intersection(job.confirmed):
        # Only newcomers remain, and they have no state yet: elastic training can't go on from them.
        why = f"{reason}; no node that has trained remains, starts again from the last checkpoint"
        turn.put(stop(turn, job, StopIntent.WAIT, why, wanted or kept), commanded=left_over)
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


def _first_choice(job: Job, nodes: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes in order of preference where not all can be kept: those that train, then those wanted."""
    return tuple(sorted(nodes, key=lambda node: (node not in job.confirmed, node not in wanted)))


def _with_leaves(job: Job, lost: frozenset[str], since: float) -> tuple[Release, ...]:
    known = {release.node: release for release in job.releases}
    for node in lost.intersection(job.held):
        earlier = known.get(node)
        if earlier is None or not earlier.left:
            known[node] = Release(node, since, left=True)
    return tuple(known[node] for node in sorted(known))


def _without(nodes: tuple[str, ...], lost: frozenset[str]) -> tuple[str, ...]:
    return tuple(node for node in nodes if node not in lost)
