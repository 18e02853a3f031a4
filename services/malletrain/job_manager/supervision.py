"""What supervisors tell: their hosts, nodes that are free, and their end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from malletrain.job_manager.jobs import Job, Release, StopIntent, nodes_in_words
from malletrain.job_manager.states import JobState
from malletrain.job_manager.stimuli import NodesReleased, Outcome, SupervisorEnded, SupervisorSeen
from malletrain.job_manager.stopping import finish
from malletrain.job_manager.world import Turn

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
    "done_since": None,
}


def see_supervisor(turn: Turn, seen: SupervisorSeen) -> None:
    """Take over a supervisor's state; one that is no longer the job's is ignored."""
    job = _job_of(turn, seen.job_id, seen.incarnation)
    if job is None:
        return
    leaving = {release.node for release in job.releases}
    confirmed = tuple(node for node in job.held if node in seen.confirmed - leaving)
    if job.stop is not None:
        confirmed = ()
    job = turn.put(job, serving=True, taken_sequence=seen.commanded_sequence, confirmed=confirmed)
    if job.stop is not None or seen.confirmed_sequence < job.sequence:
        return
    if seen.confirmed == frozenset(job.commanded):
        if job.state is not JobState.RUNNING:
            job = _settle(turn, job)
        _let_go(turn, job, seen.occupied)
    elif job.state is JobState.RUNNING:
        names = ", ".join(sorted(set(job.commanded) - seen.confirmed)) or "none"
        turn.move(job, JobState.RESCALING, f"workers were lost, on: {names}", changed_at=turn.now)


def _settle(turn: Turn, job: Job) -> Job:
    first = job.state is JobState.STARTING
    return turn.move(
        job,
        JobState.RUNNING,
        f"trains on {nodes_in_words(len(job.commanded))}",
        preempted=False,
        trained=job.commanded,
        start_time=turn.now if job.start_time is None else job.start_time,
        good_since=turn.now if first or job.good_since is None else job.good_since,
        # Monitor may have called it stalled during the change; the time that counts begins now.
        stalled_since=None if job.stalled_since is None else turn.now,
    )


def _let_go(turn: Turn, job: Job, occupied: frozenset[str]) -> None:
    """Nodes that a shrink gave up are free once no worker is seen there; a worker that lingers is made to end."""
    leaving = {release.node for release in job.releases}
    given_up = [node for node in job.held if node not in job.commanded and node not in leaving]
    lingering = tuple(Release(node, turn.now, left=False) for node in given_up if node in occupied)
    kept = tuple(node for node in job.held if node not in given_up or node in occupied)
    turn.put(job, held=kept, releases=job.releases + lingering)


def see_released(turn: Turn, released: NodesReleased) -> None:
    """Nodes are confirmed to be free of a job's processes."""
    job = _job_of(turn, released.job_id, released.incarnation)
    if job is None:
        return
    free = set(released.nodes).difference(job.commanded)
    if job.stop is not None:
        free = set(released.nodes).intersection(release.node for release in job.releases)
    _note_releases(turn, job, [release for release in job.releases if release.node in free])
    turn.put(
        job,
        held=tuple(node for node in job.held if node not in free),
        releases=tuple(release for release in job.releases if release.node not in free),
    )


def _note_releases(turn: Turn, job: Job, releases: list[Release]) -> None:
    for release in releases:
        if release.left:
            seconds = max(0.0, turn.now - release.since)
            turn.note(job, f"released: no process is left on {release.node}", seconds)


def see_end(turn: Turn, ended: SupervisorEnded) -> None:
    """A supervisor has ended with all its processes: decide what becomes of the job."""
    job = _job_of(turn, ended.job_id, ended.incarnation)
    if job is None:
        return
    _note_releases(turn, job, list(job.releases))
    bare = replace(job, **_NO_PROCESSES)
    turn.jobs[job.id] = bare
    if ended.completion is not None:
        samples = bare.samples if ended.completion.samples is None else ended.completion.samples
        metrics = dict(ended.completion.metrics)
        finish(turn, bare, JobState.COMPLETED, "the trainer says that it is done", samples=samples, metrics=metrics)
    elif job.stop is not None:
        _end_stopped(turn, bare, job.stop, ended)
    elif job.target_reached:
        finish(turn, bare, JobState.COMPLETED, f"reached its target of {job.spec.target_samples} samples")
    elif job.preempted:
        turn.move(bare, JobState.WAITING, f"did not survive a preemption, waits for nodes ({_what(ended)})")
    else:
        _fail(turn, replace(bare, wanted=()), _what(ended), ended.log_tail)


def _end_stopped(turn: Turn, job: Job, intent: StopIntent, ended: SupervisorEnded) -> None:
    if intent is StopIntent.CANCEL:
        finish(turn, job, JobState.CANCELLED, job.reason)
    elif intent is StopIntent.COMPLETE:
        finish(turn, job, JobState.COMPLETED, job.reason)
    elif intent is StopIntent.RESTART:
        _fail(turn, job, job.reason, ended.log_tail)
    else:
        turn.move(job, JobState.WAITING, f"waits for nodes ({job.reason})")


def _fail(turn: Turn, job: Job, what: str, log_tail: tuple[str, ...]) -> None:
    """Restart from the last checkpoint, or give up.

    A job that keeps its wanted nodes (it hung rather than failed, and its time limit was pause enough) may start again
    at once; another one waits twice as long as the time before.
    """
    allowed = job.spec.max_restarts
    strikes = job.strikes + 1
    if strikes > allowed:
        reason = "\n".join((f"{what}; restarted {allowed} times before; the last lines of its log:", *log_tail))
        finish(turn, job, JobState.FAILED, reason, strikes=strikes)
        return
    policy = turn.policy
    pause = min(policy.restart_backoff_seconds * 2.0 ** (strikes - 1), policy.restart_backoff_max_seconds)
    soon = bool(job.wanted)
    when = "at once" if soon else f"in {pause:g} s"
    turn.move(
        job,
        JobState.WAITING,
        f"restart {strikes} of {allowed} {when}: {what}",
        strikes=strikes,
        restarts=job.restarts + 1,
        not_before=None if soon else turn.now + pause,
    )


def _what(ended: SupervisorEnded) -> str:
    if ended.outcome is Outcome.EXITED:
        return "the trainer exited without saying that it is done"
    return ended.message or "its processes ended without a word"


def _job_of(turn: Turn, job_id: str, incarnation: int) -> Job | None:
    job = turn.jobs.get(job_id)
    return job if job is not None and job.supervised and job.incarnation == incarnation else None
