"""Rows of metrics about single jobs, of which there may not be too many. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OTHER = "other"
"""Stands for the identifier of a job, with the sum of all that have no row of their own."""


@dataclass(frozen=True)
class JobRow:
    """Values of one job, for metrics that have one sample for each job.

    Attributes:
        job_id: Its identifier.
        values: The figures, in the order of the metrics that they are for.
        owner: Name of its owner; empty where that is not shown.
    """

    job_id: str
    values: tuple[float, ...]
    owner: str = ""


def limit_rows(rows: Sequence[JobRow], max_rows: int) -> Iterable[JobRow]:
    """The first rows, and the sum of the others in one more.

    Args:
        rows: One for each job, the most important first.
        max_rows: How many stay as they are.
    """
    rest = rows[max_rows:]
    if not rest:
        return rows
    sums = tuple(map(sum, zip(*(row.values for row in rest), strict=True)))
    return (*rows[:max_rows], JobRow(OTHER, sums))
