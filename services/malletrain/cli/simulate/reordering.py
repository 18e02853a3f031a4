"""Which nice values make Slurm start what BBSched chose, and how they are taken back. Pure.

A job of the window that the method chose may stand behind one that it passed over. Slurm serves the highest priority
first, so that the chosen job's priority has to be above that. It is raised by its nice value, which is added to what
Slurm computes: age and shares go on counting, and the earlier value brings the earlier priority back.

What was raised in an earlier round counts with the priority that it would have without that. So rounds do not drive
each other up, and a job that is no longer chosen gets its nice value back, in the window or not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from malletrain.cli.simulate.advice import job_number
from malletrain.scavenger.sources.schedulers.slurm_priorities import MAX_NICE, JobPriority, is_updatable
from malletrain.scavenger.sources.schedulers.slurm_queue import WAITING

_ABOVE = 2
"""One more than needed: until the commands run, priorities change with age."""


class ChangeKind(StrEnum):
    """Why a nice value is changed."""

    RAISE = "raise"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class StandingChange:
    """A change of an earlier round that has not been taken back.

    Attributes:
        submitted: When it was submitted.
        nice_before: Its nice value before the first change.
        nice_after: Its nice value since the last one.
    """

    job: str
    submitted: str
    nice_before: int
    nice_after: int

    def holds_for(self, priority: JobPriority) -> bool:
        """Whether this is that job, it still waits, and has the nice value that we gave it."""
        return (priority.state, priority.submitted, priority.nice) == (WAITING, self.submitted, self.nice_after)


@dataclass(frozen=True, slots=True)
class NiceChange:
    """One nice value to change.

    Attributes:
        kind: Raised, or as it was before.
        submitted: When it was submitted.
        nice_before: Its nice value now.
        nice_after: What it becomes.
        priority_before: Its priority now.
        priority_wanted: What its priority has to be at least; 0: whatever it becomes.
    """

    kind: ChangeKind
    job: str
    submitted: str
    nice_before: int
    nice_after: int
    priority_before: int
    priority_wanted: int = 0


@dataclass(frozen=True, slots=True)
class Reordering:
    """What one round would do.

    Attributes:
        changes: In the order in which they are made.
        passed_over: Jobs that chosen ones are put before, or already are by an earlier round: (job, submitted).
        notes: What is not done, and why.
    """

    changes: tuple[NiceChange, ...] = ()
    passed_over: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReorderLimits:
    """How far one round may go.

    Attributes:
        changes: Most changes.
        passes: A job that was passed over in so many rounds is passed over no more (the paper's starvation bound).
    """

    changes: int = 10
    passes: int = 50


def natural_priorities(now: Mapping[str, JobPriority], standing: Mapping[str, StandingChange]) -> dict[str, int]:
    """Each job's priority without what earlier rounds added. Slurm's least is 1."""
    priorities = {}
    for job, seen in now.items():
        change = standing.get(job)
        added = change.nice_before - change.nice_after if change and change.holds_for(seen) else 0
        priorities[job] = max(1, seen.priority - added) if added else seen.priority
    return priorities


def reorder(
    window: Sequence[str],
    chosen: Collection[str],
    now: Mapping[str, JobPriority],
    standing: Mapping[str, StandingChange],
    passes: Mapping[tuple[str, str], int],
    limits: ReorderLimits,
    *,
    startable: Collection[str],
) -> Reordering:
    """Find the changes of one round.

    Args:
        window: The jobs of the window.
        chosen: Those of them that the method would start.
        now: What Slurm says of all jobs that wait, the window's among them.
        standing: Changes of earlier rounds, by job.
        passes: In how many rounds a job (with its time of submission) has been passed over.
        limits: How far to go.
        startable: Jobs that wait for their turn or for nodes. Who waits for another job, a date, a person or a limit
            waits for none that is put before it: it is not passed over, and its user can't keep the queue as it is.
    """
    natural = natural_priorities(now, standing)
    here = [job for job in window if job in now and now[job].state == WAITING]
    place = {job: (-natural[job], seen.submitted, job_number(job)) for job, seen in now.items()}
    # Of those that were passed over before, Slurm may say by now that their nodes are reserved: they leave the window.
    passed = [
        job
        for job, seen in now.items()
        if seen.state == WAITING
        and job not in chosen
        and (job in window or (job in startable and passes.get((job, seen.submitted), 0)))
    ]
    notes: list[str] = []
    raising = []
    held_back = set()
    overtaken: dict[str, None] = {}
    for job in sorted((job for job in here if job in chosen), key=lambda job: place[job]):
        ahead = [other for other in passed if place[other] < place[job]]
        why = _why_not(job, ahead, now, passes, limits.passes)
        if why:
            notes.append(why)
            held_back.add(job)
        elif ahead:
            raising.append(job)
            overtaken |= dict.fromkeys(ahead)
    changes = [
        NiceChange(ChangeKind.RESTORE, job, now[job].submitted, now[job].nice, change.nice_before, now[job].priority)
        for job, change in standing.items()
        if job in now and change.holds_for(now[job]) and (job not in chosen or job in held_back)
    ]
    notes += _changed_by_others(now, standing)
    top = max((natural[job] for job in overtaken), default=0)
    for rank, job in enumerate(raising):
        wanted = top + _ABOVE + len(raising) - 1 - rank
        if now[job].priority > top:  # by an earlier round
            continue
        nice = _nice_for(wanted, now[job])
        if nice < -MAX_NICE:
            notes.append(f"job {job} can't be raised so far: its nice value would be {nice}")
            continue
        changes.append(
            NiceChange(ChangeKind.RAISE, job, now[job].submitted, now[job].nice, nice, now[job].priority, wanted)
        )
    if len(changes) > limits.changes:
        notes.append(f"{len(changes) - limits.changes} further changes are left to the next round")
    passed_over = tuple((job, now[job].submitted) for job in overtaken)
    return Reordering(tuple(changes[: limits.changes]), passed_over, tuple(notes))


def take_back(now: Mapping[str, JobPriority], standing: Mapping[str, StandingChange]) -> Reordering:
    """Give each job that still waits with a nice value of ours the one that it had before."""
    changes = [
        NiceChange(ChangeKind.RESTORE, job, change.submitted, now[job].nice, change.nice_before, now[job].priority)
        for job, change in standing.items()
        if job in now and change.holds_for(now[job])
    ]
    gone = sum(1 for job, change in standing.items() if job not in now or now[job].submitted != change.submitted)
    notes = [f"{gone} jobs that were raised wait no longer"] if gone else []
    return Reordering(tuple(changes), (), (*notes, *_changed_by_others(now, standing)))


def _nice_for(wanted: int, seen: JobPriority) -> int:
    """The nice value that gives a priority.

    Slurm shows what is below 1 as 1, so that it does not tell how far down that is. But without its nice value no job
    is below 0.
    """
    return min(-wanted, seen.nice) if seen.priority <= 1 else seen.nice - (wanted - seen.priority)


def _why_not(
    job: str,
    ahead: Sequence[str],
    now: Mapping[str, JobPriority],
    passes: Mapping[tuple[str, str], int],
    bound: int,
) -> str:
    """Why a chosen job is not put before others; empty: it may be, or need not."""
    if ahead and not is_updatable(job):
        return f"job {job} is not one that is changed"
    for other in ahead:
        if passes.get((other, now[other].submitted), 0) >= bound:
            return f"job {job} stays behind job {other}, which has been passed over in {bound} rounds"
    return ""


def _changed_by_others(now: Mapping[str, JobPriority], standing: Mapping[str, StandingChange]) -> list[str]:
    return [
        f"job {job} has a nice value of {now[job].nice} that is not ours ({change.nice_after}): it is left alone"
        for job, change in standing.items()
        if job in now and now[job].submitted == change.submitted and now[job].nice != change.nice_after
    ]
