"""What can be asked of usage, and what the tables answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from malletrain.job_manager.machine.usage import UsageAmounts, UsageRow

MAX_SUMS = 100_000
"""Rows that one query may come to."""


class UsageKey(StrEnum):
    """What usage is added up by."""

    OWNER = "owner"
    PROJECT = "project"
    JOB = "job"
    MONTH = "month"


@dataclass(frozen=True)
class UsageQuery:
    """Which usage is asked for, and by what it is added up.

    Attributes:
        keys: By what it is added up.
        since: First day, in days since the epoch.
        until: First day that does not count any more.
        owner: Whose; empty: of all.
    """

    keys: frozenset[UsageKey]
    since: int
    until: int
    owner: str = ""


@dataclass(frozen=True)
class UsageSum:
    """What was used of one kind, in one month: complete days.

    Attributes:
        owner: Owner; empty where it is not asked for.
        project: Project; empty where there is none, or it is not asked for.
        job_number: Number of the job; 0 where it is not asked for, and for jobs that are no longer kept.
        month: Number of the month.
        amounts: What was used.
    """

    owner: str
    project: str
    job_number: int
    month: int
    amounts: UsageAmounts


@dataclass(frozen=True)
class StoredUsage:
    """What the tables have, of one moment.

    Attributes:
        sums: Complete days.
        opened: The newest rows of jobs that have not ended.
        cut: Months of which the query asks for a part, and of which there is usage of jobs that are no longer kept. It
            is known by months only, and left out.
    """

    sums: tuple[UsageSum, ...]
    opened: tuple[UsageRow, ...]
    cut: tuple[str, ...]
