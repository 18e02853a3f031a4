"""Who takes part in plans: the first in the queue, as many as there are places (MalleTrain, §3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from malletrain.job_manager.jobs import Job, Spec
from malletrain.job_manager.states import JobState
from malletrain.job_manager.world import Turn

_T = TypeVar("_T")


def first_in_line(queued: Iterable[_T], taken: int, places: int) -> list[_T]:
    """Who comes next: the first of the queue, as many as there are free places.

    Args:
        queued: The queue, first come first.
        taken: How many take part already.
        places: How many may take part at once.
    """
    return list(islice(queued, max(0, places - taken)))


def enqueue(turn: Turn, specs: tuple[Spec, ...]) -> None:
    """Put jobs at the end of the queue."""
    for spec in specs:
        turn.last_number += 1
        turn.add(
            Job(
                number=turn.last_number,
                spec=spec,
                state=JobState.QUEUED,
                reason=f"waits for one of {turn.policy.max_parallel} places",
                create_time=turn.now,
                update_time=turn.now,
            )
        )


def admit(turn: Turn) -> None:
    """Fill all free places at once, in order of submission, so that one plan serves a whole batch."""
    active = turn.active()
    taken = sum(job.admitted for job in active)
    queued = [job for job in active if job.state is JobState.QUEUED]
    for job in first_in_line(queued, taken, turn.policy.max_parallel):
        taken += 1
        turn.move(job, JobState.WAITING, f"admitted to place {taken} of {turn.policy.max_parallel}, waits for nodes")
