"""Who used what: usage as it is stored and what has been added to it since, by whatever is asked for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from malletrain.job_manager.charging import Charge, ChargeRate, charge_of
from malletrain.job_manager.machine.jobs import job_id
from malletrain.job_manager.machine.usage import UsageAmounts, UsageRow, month_name, month_of, settle_usage
from malletrain.job_manager.storage.usage_query import MAX_SUMS, StoredUsage, UsageKey, UsageQuery, UsageSum
from malletrain.runtime.errors import InvalidInputError, LimitExceededError

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_EPOCH = date(1970, 1, 1)
_END = (date(9999, 1, 1) - _EPOCH).days


@dataclass(frozen=True)
class UsageEntry:
    """What was used of one kind, and what it costs.

    Attributes:
        owner: Owner; empty where it is not asked for.
        project: Project; empty where there is none, or it is not asked for.
        job_id: The job; empty where it is not asked for, and for jobs that are no longer kept.
        month: Month, as 2026-07; empty where it is not asked for.
        amounts: What was used.
        charge: What it costs.
    """

    owner: str
    project: str
    job_id: str
    month: str
    amounts: UsageAmounts
    charge: Charge


def query_of(keys: Iterable[UsageKey], since: str, until: str, owner: str) -> UsageQuery:
    """A query from what was asked for.

    Args:
        keys: By what usage is added up.
        since: First day, as 2026-07-01; empty: from the beginning.
        until: First day that does not count any more; empty: up to now.
        owner: Whose; empty: of all.

    Raises:
        InvalidInputError: a day is none, or they are in the wrong order.
    """
    first, end = _day("since", since, 0), _day("until", until, _END)
    if first >= end:
        raise InvalidInputError("until", f"a day after since ({since or 'the beginning'})", until)
    return UsageQuery(frozenset(keys), first, end, owner)


def entries_of(
    stored: StoredUsage, query: UsageQuery, now: float, samples: Mapping[int, int], rates: Sequence[ChargeRate]
) -> list[UsageEntry]:
    """The entries of an answer, ordered by month, owner, project and job.

    Args:
        stored: What is stored.
        query: What is asked for.
        now: Seconds since the epoch, until when usage is counted.
        samples: Samples of the jobs that have not ended, by number.
        rates: What is charged.

    Raises:
        LimitExceededError: they are too many.
    """
    sums: dict[tuple[str, str, int, int], tuple[UsageAmounts, Charge]] = {}
    for entry in (*stored.sums, *_going_on(stored.opened, query, now, samples)):
        key = _key(entry, query.keys)
        amounts, charge = sums.get(key, (UsageAmounts(), Charge()))
        sums[key] = (amounts + entry.amounts, charge + charge_of(entry.amounts, entry.month, rates))
    # No more rows than that are read, open ones included: what is cut off must not be missing from a bill.
    if max(len(sums), len(stored.sums) + len(stored.opened)) > MAX_SUMS:
        raise LimitExceededError(f"this comes to more than {MAX_SUMS} rows: ask for fewer days, or not by job")
    return [
        UsageEntry(owner, project, job_id(number) if number else "", month_name(month) if month else "", *value)
        for (month, owner, project, number), value in sorted(
            ((key[3], key[0], key[1], key[2]), value) for key, value in sums.items()
        )
    ]


def _day(field: str, text: str, default: int) -> int:
    if not text:
        return default
    try:
        day = date.fromisoformat(text) if _DATE.match(text) else None
    except ValueError:
        day = None
    if day is None or not _EPOCH <= day <= date(9999, 1, 1):
        raise InvalidInputError(field, "a day as 2026-07-01, from 1970 on", text)
    return (day - _EPOCH).days


def _going_on(
    opened: Iterable[UsageRow], query: UsageQuery, now: float, samples: Mapping[int, int]
) -> Iterator[UsageSum]:
    """Usage of jobs that have not ended, from the last day that is complete until now."""
    for row in opened:
        assert row.open is not None
        total = samples.get(row.job_number, row.open.samples + row.amounts.samples)
        preemptions = row.open.preemptions + row.amounts.preemptions
        days, usage = settle_usage(row.open, now, total, preemptions)
        for day, amounts in (*days, (usage.day, usage.counting(total, preemptions))):
            if query.since <= day < query.until:
                yield UsageSum(row.owner, row.project, row.job_number, month_of(day), amounts)


def _key(entry: UsageSum, keys: frozenset[UsageKey]) -> tuple[str, str, int, int]:
    return (
        entry.owner if UsageKey.OWNER in keys else "",
        entry.project if UsageKey.PROJECT in keys else "",
        entry.job_number if UsageKey.JOB in keys else 0,
        entry.month if UsageKey.MONTH in keys else 0,
    )
