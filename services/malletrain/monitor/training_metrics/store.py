"""Monitor's tables of what scripts log of their trainings.

Values are added where they are stored: of each metric only its end is in memory, and points are read when a history is
thinned, or asked for.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    delete,
    func,
    insert,
    select,
)

from malletrain.model.goodput import BATCH_PER_NODE_METRIC, NOISE_SCALE_METRIC
from malletrain.monitor.machine.noise import NoiseSeen, noise_among
from malletrain.monitor.training_metrics.history import (
    MAX_NAMES,
    HistoryEnd,
    HistoryPoint,
    LoggedValue,
    begin_history,
    thin_history,
)
from malletrain.runtime.database.errors import DatabaseUnavailableError

METADATA = MetaData()
"""All tables of Monitor: its store adds the others."""

MAX_OWNER_METRICS = 4096
"""Most histories that are kept of the jobs of one owner. Beyond that, those go that were silent for longest."""
_CACHED_JOBS = 4096
_WAITING_VALUES = 2048


def _point_columns(primary: bool = False) -> list[Column[Any]]:
    return [
        Column("first", BigInteger, nullable=False, primary_key=primary),
        Column("count", BigInteger, nullable=False),
        Column("step", BigInteger, nullable=False),
        Column("unix_seconds", Float, nullable=False),
        Column("value", Float, nullable=False),
        Column("least", Float, nullable=False),
        Column("most", Float, nullable=False),
    ]


_POINT_FIELDS = {column.name: {"count": "values"}.get(column.name, column.name) for column in _point_columns()}
"""Field of a point by the column that it is stored in."""

_JOBS = Table(
    "monitor_metric_jobs",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("reporter_id", String, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("names", Integer, nullable=False),
    Column("unix_seconds", Float, nullable=False),
    Index("monitor_metric_jobs_owner", "owner"),
)
_ENDS = Table(
    "monitor_metric_ends",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("stride", BigInteger, nullable=False),
    Column("closed", Integer, nullable=False),
    *_point_columns(),
)
_POINTS = Table(
    "monitor_metric_points",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("name", String, primary_key=True),
    *_point_columns(primary=True),
)
_TABLES = (_JOBS, _ENDS, _POINTS)


@dataclass(frozen=True)
class LoggedBatch:
    """Values that one reporter of a job has sent.

    Attributes:
        job_id: The job.
        owner: Who submitted it; empty: not known yet.
        reporter_id: The reporter.
        values: Each with its step, in the order of their numbers.
    """

    job_id: str
    owner: str
    reporter_id: str
    values: tuple[LoggedValue, ...]


def newest_values(batches: Sequence[LoggedBatch]) -> tuple[LoggedBatch, ...]:
    """These batches, or the newest of them: while the database is away, no more than 2048 values of a job wait."""
    waiting: Counter[str] = Counter()
    newest = []
    for batch in reversed(batches):
        if not waiting[batch.job_id] or waiting[batch.job_id] + len(batch.values) <= _WAITING_VALUES:
            waiting[batch.job_id] += len(batch.values)
            newest.append(batch)
    return tuple(reversed(newest))


@dataclass(frozen=True)
class JobHistories:
    """What is stored of a job, or a part of that.

    Attributes:
        owner: Who submitted it; empty: not known.
        histories: The points of each metric, oldest first, by name in the order of names.
        more: Whether other metrics follow.
    """

    owner: str = ""
    histories: dict[str, list[HistoryPoint]] = field(default_factory=dict)
    more: bool = False


@dataclass
class _Job:
    """A job's row, and the end of each of its metrics."""

    owner: str = ""
    reporter_id: str = ""
    number: int = 0
    unix_seconds: float = 0.0
    ends: dict[str, HistoryEnd] = field(default_factory=dict)


class MetricStore:
    """Adds values to histories, and reads them. `add` and `forget` are called by one thread at a time."""

    def __init__(self, engine: Engine, max_owner_metrics: int = MAX_OWNER_METRICS) -> None:
        """The tables must be there: `malletrain.runtime.database.migrating` makes them.

        Args:
            engine: The database.
            max_owner_metrics: Most histories of the jobs of one owner.
        """
        self._engine = engine
        self._max_owner_metrics = max_owner_metrics
        self._jobs: OrderedDict[str, _Job] = OrderedDict()

    def add(self, batches: Iterable[LoggedBatch]) -> None:
        """Store values in one transaction. Those that are stored already are left out, and those of too many metrics.

        Raises:
            DatabaseUnavailableError: the database can't be written. The call may be repeated, also where the error came
                after the rows were stored.
        """
        try:
            with self._engine.begin() as connection:
                for batch in batches:
                    self._add(connection, batch)
        except DatabaseUnavailableError:
            self._jobs.clear()  # what is stored is not known: it is read again
            raise
        while len(self._jobs) > _CACHED_JOBS:
            self._jobs.popitem(last=False)

    def forget(self, connection: Connection, job_ids: Collection[str]) -> None:
        """Delete the rows of jobs."""
        for table in _TABLES:
            connection.execute(delete(table).where(table.c.job_id.in_(job_ids)))
        for job_id in job_ids:
            self._jobs.pop(job_id, None)

    def owner(self, job_id: str) -> str | None:
        """The user who submitted a job; None where nothing is stored of it. May be called in any thread."""
        with self._engine.connect() as connection:
            return connection.execute(select(_JOBS.c.owner).where(_JOBS.c.job_id == job_id)).scalar()

    def read(self, job_id: str, names: Collection[str] = (), after: str = "", limit: int = MAX_NAMES) -> JobHistories:
        """What is stored of a job. May be called in any thread.

        Args:
            job_id: The job; nothing is found of one that is not known.
            names: Only these metrics; none: all.
            after: Only those whose names follow this one.
            limit: Most metrics.
        """
        with self._engine.connect() as connection:
            ends = {name: end for name, end in _ends(connection, job_id).items() if not names or name in names}
            wanted = sorted(name for name in ends if name > after)
            page = wanted[:limit]
            histories = {name: _with_end(_closed_points(connection, job_id, name), ends[name].last) for name in page}
        return JobHistories(self.owner(job_id) or "", histories, len(wanted) > limit)

    def _add(self, connection: Connection, batch: LoggedBatch) -> None:
        job = self._jobs.get(batch.job_id) or _load(connection, batch.job_id)
        self._jobs[batch.job_id] = job
        self._jobs.move_to_end(batch.job_id)
        known = job.number if job.reporter_id == batch.reporter_id else 0
        fresh = [value for value in batch.values if value.number > known]
        if not fresh:
            return
        names = len(job.ends)
        by_name: dict[str, list[LoggedValue]] = {}
        for value in fresh:
            by_name.setdefault(value.name, []).append(value)
        for name, values in by_name.items():
            if name in job.ends or len(job.ends) < MAX_NAMES:
                job.ends[name] = _extend(connection, (batch.job_id, name), job.ends.get(name), values)
        changed = [name for name in by_name if name in job.ends]
        if changed:
            connection.execute(delete(_ENDS).where(_ENDS.c.job_id == batch.job_id, _ENDS.c.name.in_(changed)))
            connection.execute(insert(_ENDS), [_end_row(batch.job_id, name, job.ends[name]) for name in changed])
        job.owner, job.reporter_id = batch.owner or job.owner, batch.reporter_id
        job.number, job.unix_seconds = fresh[-1].number, fresh[-1].unix_seconds
        _write_job(connection, batch.job_id, job)
        if len(job.ends) > names:
            self._make_room(connection, batch.job_id, job.owner)

    def _make_room(self, connection: Connection, job_id: str, owner: str) -> None:
        """Keep no more than so many histories of an owner: those of the job that was silent for longest go first."""
        while True:
            count = connection.execute(select(func.sum(_JOBS.c.names)).where(_JOBS.c.owner == owner)).scalar() or 0
            if count <= self._max_owner_metrics:
                return
            others = select(_JOBS.c.job_id).where(_JOBS.c.owner == owner, _JOBS.c.job_id != job_id)
            oldest = connection.execute(others.order_by(_JOBS.c.unix_seconds, _JOBS.c.job_id).limit(1)).scalar()
            if oldest is None:
                return
            self.forget(connection, [oldest])


def noise_told(connection: Connection) -> dict[str, NoiseSeen]:
    """What jobs have last told of their gradients, of those that have told anything."""
    names = (NOISE_SCALE_METRIC, BATCH_PER_NODE_METRIC)
    rows = connection.execute(select(_ENDS.c.job_id, _ENDS.c.name, _ENDS.c.value).where(_ENDS.c.name.in_(names)))
    told: dict[str, dict[str, float]] = {}
    for job_id, name, value in rows:
        told.setdefault(job_id, {})[name] = value
    noise_by_job = {job_id: noise_among(values) for job_id, values in told.items()}
    return {job_id: noise for job_id, noise in noise_by_job.items() if noise is not None}


def _extend(
    connection: Connection, key: tuple[str, str], end: HistoryEnd | None, values: Sequence[LoggedValue]
) -> HistoryEnd:
    """Add values to a metric and store the points that get no more values; returns its end, which is to be stored."""
    closed: list[HistoryPoint] = []
    for value in values:
        if end is None:
            end = begin_history(value)
            continue
        end, point = end.after(value)
        if point is not None:
            closed.append(point)
        if end.is_full:
            stored, end = thin_history([*_closed_points(connection, *key), *closed], end)
            connection.execute(delete(_POINTS).where(_POINTS.c.job_id == key[0], _POINTS.c.name == key[1]))
            closed = stored
    assert end is not None
    if closed:
        connection.execute(insert(_POINTS), [{"job_id": key[0], "name": key[1], **_row(point)} for point in closed])
    return end


def _load(connection: Connection, job_id: str) -> _Job:
    row = connection.execute(select(_JOBS).where(_JOBS.c.job_id == job_id)).mappings().first()
    if row is None:
        return _Job()
    return _Job(row["owner"], row["reporter_id"], row["number"], row["unix_seconds"], _ends(connection, job_id))


def _write_job(connection: Connection, job_id: str, job: _Job) -> None:
    connection.execute(delete(_JOBS).where(_JOBS.c.job_id == job_id))
    row = {
        "job_id": job_id,
        "owner": job.owner,
        "reporter_id": job.reporter_id,
        "number": job.number,
        "names": len(job.ends),
        "unix_seconds": job.unix_seconds,
    }
    connection.execute(insert(_JOBS), [row])


def _ends(connection: Connection, job_id: str) -> dict[str, HistoryEnd]:
    rows = connection.execute(select(_ENDS).where(_ENDS.c.job_id == job_id)).mappings()
    return {row["name"]: HistoryEnd(row["stride"], row["closed"], _point(row)) for row in rows}


def _closed_points(connection: Connection, job_id: str, name: str) -> list[HistoryPoint]:
    query = select(_POINTS).where(_POINTS.c.job_id == job_id, _POINTS.c.name == name).order_by(_POINTS.c.first)
    return [_point(row) for row in connection.execute(query).mappings()]


def _with_end(closed: list[HistoryPoint], last: HistoryPoint) -> list[HistoryPoint]:
    """All points. What was thinned between the two reads may hold the last one already."""
    if closed and closed[-1].first + closed[-1].values > last.first:
        return closed
    return [*closed, last]


def _end_row(job_id: str, name: str, end: HistoryEnd) -> dict[str, Any]:
    return {"job_id": job_id, "name": name, "stride": end.stride, "closed": end.closed, **_row(end.last)}


def _row(point: HistoryPoint) -> dict[str, Any]:
    return {column: getattr(point, name) for column, name in _POINT_FIELDS.items()}


def _point(row: RowMapping) -> HistoryPoint:
    return HistoryPoint(**{name: row[column] for column, name in _POINT_FIELDS.items()})
