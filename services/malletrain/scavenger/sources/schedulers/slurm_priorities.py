"""Priorities of jobs that wait in Slurm, as `squeue` tells them. Pure.

Only numbers, states and times are asked for: nothing that a user writes can be taken for another job or field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.slurm_text import lines_of

PRIORITY_FORMAT = ",".join(f"{name}:0|" for name in ("JobArrayID", "StateCompact", "PriorityLong", "Nice")) + (
    ",SubmitTime:0"
)
"""For `squeue -h -r -O`."""
MAX_NICE = 2_147_483_645
"""Slurm's largest nice value; the smallest is the same below zero (slurm.h, NICE_OFFSET)."""

_ROW = re.compile(
    r"(?P<job>\d[\d_+]{0,40})\|(?P<state>[A-Z]{1,3})\|(?P<priority>\d{1,20})\|(?P<nice>-?\d{1,12})"
    r"\|(?P<submitted>[0-9T:-]{1,40})"
)
_UPDATABLE = re.compile(r"\d{1,10}(_\d{1,10})?")


@dataclass(frozen=True, slots=True)
class JobPriority:
    """What Slurm says of the place of a job in its queue.

    Attributes:
        job: Its identifier, e.g. 17 or 17_3.
        state: Its state in short, e.g. PD.
        priority: Slurm's priority: the highest is served first.
        nice: By how much the priority has been lowered; negative: raised.
        submitted: When it was submitted, as Slurm writes it: with it, a number that is given again is another job.
    """

    job: str
    state: str
    priority: int
    nice: int
    submitted: str


def is_updatable(job: str) -> bool:
    """Whether an identifier may be handed to `scontrol update`: a job, or one task of an array."""
    return _UPDATABLE.fullmatch(job) is not None


def parse_priorities(text: str) -> dict[str, JobPriority]:
    """The answer to `squeue -h -r -O PRIORITY_FORMAT`, by job.

    Raises:
        SourceError: the text has another form. Names the line.
    """
    try:
        lines = lines_of(text)
    except UnreadableError as error:
        raise SourceError(f"squeue, last line: {error}") from error
    priorities = {}
    for number, line in enumerate(lines, 1):
        row = _ROW.fullmatch(line.strip())
        if not row:
            raise SourceError(f"squeue, line {number}: {UnreadableError('JOB|STATE|PRIORITY|NICE|SUBMITTED', line)}")
        priorities[row["job"]] = JobPriority(
            row["job"], row["state"], int(row["priority"]), int(row["nice"]), row["submitted"]
        )
    return priorities
