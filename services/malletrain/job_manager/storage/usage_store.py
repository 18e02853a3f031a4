"""The tables of usage: by job and day; of jobs that are no longer kept, by owner, project and month.

Rows are written in the transaction of the change that they belong to, and each replaces the one of its job and day. So
what is stored once counts once, whatever is killed in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    Row,
    Select,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    union_all,
    update,
)

from malletrain.job_manager.machine.jobs import Job, job_id
from malletrain.job_manager.machine.usage import (
    Holding,
    OpenUsage,
    UsageAmounts,
    UsageRow,
    day_of,
    first_day,
    month_name,
    month_of,
)
from malletrain.job_manager.storage.usage_query import MAX_SUMS, StoredUsage, UsageKey, UsageQuery, UsageSum

_T = TypeVar("_T")

METADATA = MetaData()
BIG_INTEGER = BigInteger().with_variant(Integer, "sqlite")
_MAX_VALUES = 500
"""Of one query: some builds of SQLite take no more than 999, and a submission has up to 10,000 jobs."""


def chunks(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """As many values at a time as one query may have."""
    return (values[begin : begin + _MAX_VALUES] for begin in range(0, len(values), _MAX_VALUES))


_SUMS = ("node_seconds", "gpu_seconds", "lost_node_seconds", "samples", "preemptions")


def _amounts() -> list[Column[Any]]:
    whole = [Column(name, BIG_INTEGER, nullable=False) for name in ("samples", "preemptions")]
    return [*(Column(name, Float, nullable=False) for name in _SUMS[:3]), *whole]


_USAGE = Table(
    "usage",
    METADATA,
    Column("job_number", BIG_INTEGER, primary_key=True, autoincrement=False),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("month", Integer, nullable=False),
    Column("owner", String(256), nullable=False, index=True),
    Column("project", String(64), nullable=False),
    *_amounts(),
    # How it goes on, of the newest row of a job that has not ended.
    Column("since", Float),
    Column("nodes", Float),
    Column("gpus", Float),
    Column("lost", Float),
    Column("samples_before", BIG_INTEGER),
    Column("preemptions_before", BIG_INTEGER),
)
_REMOVED = Table(
    "usage_of_removed",
    METADATA,
    Column("owner", String(256), primary_key=True),
    Column("project", String(64), primary_key=True),
    Column("month", Integer, primary_key=True, autoincrement=False),
    *_amounts(),
)


class UsageStore:
    """Reads the tables of usage."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, query: UsageQuery) -> StoredUsage:
        """What a query asks for; at most `MAX_SUMS` rows and one more, by which it is known that they are too many.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        with self._engine.connect() as connection:
            # One statement, so that a job that ends or is removed meanwhile counts once.
            rows = list(connection.execute(_statement(query)))
            partial = [month for month in {month_of(query.since), month_of(query.until)} if _is_cut(month, query)]
            known = select(_REMOVED.c.month).where(_REMOVED.c.month.in_(partial)).distinct()
            cut = connection.scalars(_restrict_to_owner(known, _REMOVED, query)) if partial else ()
            months = tuple(month_name(month) for month in sorted(cut))
        sums = tuple(
            UsageSum(row.owner, row.project, row.job_number, row.month, _amounts_of(row))
            for row in rows
            if row.since is None
        )
        return StoredUsage(sums, tuple(_usage_row(row) for row in rows if row.since is not None), months)


def write_usage(connection: Connection, rows: Mapping[tuple[int, int], UsageRow]) -> None:
    """Store rows, each in place of the one of its job and day."""
    if rows:
        place = (_USAGE.c.job_number == bindparam("number_before"), _USAGE.c.day == bindparam("day_before"))
        earlier = [{"number_before": number, "day_before": day} for number, day in rows]
        connection.execute(delete(_USAGE).where(*place), earlier)
        connection.execute(insert(_USAGE), [_values(row) for row in rows.values()])


def count_last_samples(connection: Connection, jobs: Iterable[Job]) -> None:
    """Have the days of jobs that have ended come to their samples: Monitor may tell of the last ones later."""
    for batch in chunks(list(jobs)):
        number = _USAGE.c.job_number
        known = select(number, func.sum(_USAGE.c.samples).label("samples"), func.max(_USAGE.c.day).label("day"))
        of_batch = known.where(number.in_([job.number for job in batch])).group_by(number)
        counted = {row.job_number: (int(row.samples), row.day) for row in connection.execute(of_batch)}
        for job in batch:
            samples, day = counted.get(job.number, (0, None))
            if samples != job.samples:
                _add_samples(connection, job, job.samples - samples, day)


def _add_samples(connection: Connection, job: Job, missing: int, newest: int | None) -> None:
    """Add samples to the newest day of a job; to the one of its end where it has none."""
    if newest is None:
        row = UsageRow(job.number, day_of(job.update_time), job.owner, job.spec.project, UsageAmounts(samples=missing))
        connection.execute(insert(_USAGE), [_values(row)])
    else:
        place = update(_USAGE).where(_USAGE.c.job_number == job.number, _USAGE.c.day == newest)
        connection.execute(place.values(samples=_USAGE.c.samples + missing))


def keep_removed(connection: Connection, numbers: Select[tuple[int]]) -> None:
    """Add the usage of jobs that are being removed to that of their owners, projects and months.

    Args:
        connection: The transaction in which they are removed.
        numbers: Selects their numbers.
    """
    keys = (_USAGE.c.owner, _USAGE.c.project, _USAGE.c.month)
    of_removed = _USAGE.c.job_number.in_(numbers)
    for row in list(connection.execute(select(*keys, *_sum_columns(_USAGE)).where(of_removed).group_by(*keys))):
        key = {"owner": row.owner, "project": row.project, "month": row.month}
        added = {name: _REMOVED.c[name] + getattr(row, name) for name in _SUMS}
        place = [_REMOVED.c[name] == value for name, value in key.items()]
        if not connection.execute(update(_REMOVED).where(*place).values(added)).rowcount:
            connection.execute(insert(_REMOVED), [{**key, **asdict(_amounts_of(row))}])
    connection.execute(delete(_USAGE).where(of_removed))


def load_usage(connection: Connection) -> dict[str, OpenUsage]:
    """The usage of jobs that have not ended, by identifier."""
    rows = map(_usage_row, connection.execute(select(_USAGE).where(_USAGE.c.since.is_not(None))))
    return {job_id(row.job_number): row.open for row in rows if row.open is not None}


def give_owner(connection: Connection, owner: str) -> None:
    """Give the usage of jobs that were stored when jobs had no owners an owner."""
    connection.execute(update(_USAGE).where(_USAGE.c.owner == "").values(owner=owner))


def _values(row: UsageRow) -> dict[str, object]:
    going_on = row.open
    return {
        "job_number": row.job_number,
        "day": row.day,
        "month": month_of(row.day),
        "owner": row.owner,
        "project": row.project,
        **asdict(row.amounts),
        "since": None if going_on is None else going_on.since,
        "nodes": None if going_on is None else going_on.holding.nodes,
        "gpus": None if going_on is None else going_on.holding.gpus,
        "lost": None if going_on is None else going_on.holding.lost,
        "samples_before": None if going_on is None else going_on.samples,
        "preemptions_before": None if going_on is None else going_on.preemptions,
    }


def _usage_row(row: Row[Any]) -> UsageRow:
    amounts = _amounts_of(row)
    going_on = OpenUsage(
        row.day,
        row.since,
        UsageAmounts(amounts.node_seconds, amounts.gpu_seconds, amounts.lost_node_seconds),
        Holding(row.nodes, row.gpus, row.lost),
        row.samples_before,
        row.preemptions_before,
    )
    return UsageRow(row.job_number, row.day, row.owner, row.project, amounts, going_on)


def _amounts_of(row: Row[Any]) -> UsageAmounts:
    return UsageAmounts(
        float(row.node_seconds),
        float(row.gpu_seconds),
        float(row.lost_node_seconds),
        int(row.samples),  # PostgreSQL adds whole numbers up to decimal ones
        int(row.preemptions),
    )


def _sum_columns(table: Table) -> list[ColumnElement[Any]]:
    return [func.sum(table.c[name]).label(name) for name in _SUMS]


def _statement(query: UsageQuery) -> Any:
    """Complete days, those of removed jobs, and open rows, as one."""
    keys, days = query.keys, (_USAGE.c.day >= query.since, _USAGE.c.day < query.until)
    grouped = [_USAGE.c.owner] * (UsageKey.OWNER in keys) + [_USAGE.c.project] * (UsageKey.PROJECT in keys)
    grouped += [_USAGE.c.job_number] * (UsageKey.JOB in keys) + [_USAGE.c.month]
    rest = [null().label(name) for name in ("day", "since", "nodes", "gpus", "lost")]
    before = [null().label(name) for name in ("samples_before", "preemptions_before")]
    complete = (
        select(*_key_columns(_USAGE, keys), *_sum_columns(_USAGE), *rest, *before)
        .where(_USAGE.c.since.is_(None), *days)
        .group_by(*grouped)
    )
    months = (_REMOVED.c.month >= _first_whole(query.since), _REMOVED.c.month < month_of(query.until))
    removed = select(*_key_columns(_REMOVED, keys), *_sum_columns(_REMOVED), *rest, *before).where(*months)
    removed = removed.group_by(
        *[_REMOVED.c[column.name] for column in grouped if column.name != "job_number"],
    )
    parts = ("day", "since", "nodes", "gpus", "lost", "samples_before", "preemptions_before")
    opened = select(*(_USAGE.c[name] for name in ("owner", "project", "job_number", "month", *_SUMS, *parts))).where(
        _USAGE.c.since.is_not(None)
    )
    chosen = union_all(
        _restrict_to_owner(opened, _USAGE, query),
        _restrict_to_owner(complete, _USAGE, query),
        _restrict_to_owner(removed, _REMOVED, query),
    )
    return chosen.limit(MAX_SUMS + 1)


def _key_columns(table: Table, keys: Collection[UsageKey]) -> list[ColumnElement[Any]]:
    by_job = UsageKey.JOB in keys and "job_number" in table.c
    return [
        (table.c.owner if UsageKey.OWNER in keys else literal("")).label("owner"),
        (table.c.project if UsageKey.PROJECT in keys else literal("")).label("project"),
        (table.c.job_number if by_job else literal(0)).label("job_number"),
        table.c.month.label("month"),
    ]


def _restrict_to_owner(statement: Select[Any], table: Table, query: UsageQuery) -> Select[Any]:
    return statement.where(table.c.owner == query.owner) if query.owner else statement


def _first_whole(day: int) -> int:
    """The first month that begins on a day or later."""
    month = month_of(day)
    return month if first_day(month) == day else month + 1


def _is_cut(month: int, query: UsageQuery) -> bool:
    """Whether a part of a month is asked for."""
    first, following = first_day(month), first_day(month + 1)
    part = min(query.until, following) - max(query.since, first)
    return 0 < part < following - first
