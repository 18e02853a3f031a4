"""Monitor's tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    RowMapping,
    String,
    Table,
    bindparam,
    delete,
    insert,
    select,
)

from malletrain.monitor.machine.progress import JobProgress, ReporterState
from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.monitor.machine.throughput import MeasuredPoint, SpanPoint
from malletrain.monitor.machine.trackers import StoredJob
from malletrain.monitor.training_metrics.store import METADATA, MetricStore, noise_told
from malletrain.runtime.database.errors import DatabaseUnavailableError

__all__ = ["METADATA", "MonitorStore"]

_JOBS = Table(
    "monitor_jobs",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("samples", BigInteger, nullable=False),
    Column("samples_lost", BigInteger, nullable=False),
    Column("positioned", Boolean, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("last_record_unix_seconds", Float, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("reporter_id", String, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("dropped_records", BigInteger, nullable=False),
    Column("usual_step_seconds", Float, nullable=False),
    Column("lineage", String, nullable=False, server_default=""),
)

_REPORTERS = Table(
    "monitor_reporters",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("reporter_id", String, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("dropped_records", BigInteger, nullable=False),
    Column("first_unix_seconds", Float, nullable=False, server_default="0"),
)


def _rate_columns() -> list[Column[Any]]:
    return [
        Column("rate", Float, nullable=False),
        Column("weight", Float, nullable=False),
        Column("steps", BigInteger, nullable=False),
        Column("unix_seconds", Float, nullable=False),
        Column("relative_error", Float, nullable=False),
    ]


_POINTS = Table(
    "monitor_points",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("nodes", Integer, primary_key=True),
    *_rate_columns(),
)

_RESCALES = Table(
    "monitor_rescales",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("from_nodes", Integer, nullable=False),
    Column("to_nodes", Integer, nullable=False),
    Column("stall_seconds", Float, nullable=False),
    Column("unix_seconds", Float, nullable=False),
)

_SPANS = Table(
    "monitor_span_points",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("nodes", Integer, primary_key=True),
    Column("shared_levels", Integer, primary_key=True),
    *_rate_columns(),
)

_TABLES = (_JOBS, _REPORTERS, _POINTS, _RESCALES, _SPANS)

Row = dict[str, Any]
Rows = dict[str, dict[tuple[Any, ...], Row]]
"""A job's rows: by table name, by primary key."""


class MonitorStore:
    """Stores trackers. Only rows that have changed are written.

    Attributes:
        metrics: What scripts have logged of their trainings, in the same database.
    """

    def __init__(self, engine: Engine) -> None:
        """The tables must be there: `malletrain.runtime.database.migrating` makes them."""
        self._engine = engine
        self.metrics = MetricStore(engine)
        self._written: dict[str, Rows] = {}
        self._unsure = False

    def load(self) -> list[StoredJob]:
        """All stored jobs, by identifier."""
        with self._engine.connect() as connection:
            jobs = _stored_jobs(connection)
            noise = noise_told(connection)
        self._written = {job.job_id: _rows_of(job) for job in jobs}
        return [replace(job, noise=noise[job.job_id]) if job.job_id in noise else job for job in jobs]

    def write(self, jobs: Iterable[StoredJob]) -> None:
        """Store jobs in one transaction.

        Raises:
            DatabaseUnavailableError: the database can't be written. The call may be repeated, also where the error came
                after the rows were stored.
        """
        fresh = {job.job_id: _rows_of(job) for job in jobs}
        try:
            with self._engine.begin() as connection:
                if self._unsure:
                    self._written = {job.job_id: _rows_of(job) for job in _stored_jobs(connection)}
                for table in _TABLES:
                    self._write_table(connection, table, fresh)
        except DatabaseUnavailableError:
            self._unsure = True
            raise
        self._unsure = False
        self._written.update(fresh)

    def forget(self, job_ids: Collection[str]) -> None:
        """Delete the rows of jobs in one transaction.

        Raises:
            DatabaseUnavailableError: the database can't be written. The call may be repeated.
        """
        with self._engine.begin() as connection:
            for table in _TABLES:
                connection.execute(delete(table).where(table.c.job_id.in_(job_ids)))
            self.metrics.forget(connection, job_ids)
        for job_id in job_ids:
            self._written.pop(job_id, None)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def _write_table(self, connection: Connection, table: Table, fresh: dict[str, Rows]) -> None:
        gone: list[Row] = []
        changed: list[Row] = []
        names = [column.name for column in table.primary_key]
        for job_id, rows in fresh.items():
            before, after = self._written.get(job_id, {}).get(table.name, {}), rows[table.name]
            # A changed row is deleted and inserted again: understood by every database, unlike any form of upsert.
            stale = [key for key, row in before.items() if after.get(key) != row]
            gone += [{f"key_{name}": part for name, part in zip(names, key, strict=True)} for key in stale]
            changed += [row for key, row in after.items() if before.get(key) != row]
        if gone:
            matches = [table.c[name] == bindparam(f"key_{name}") for name in names]
            connection.execute(delete(table).where(*matches), gone)
        if changed:
            connection.execute(insert(table), changed)


def _stored_jobs(connection: Connection) -> list[StoredJob]:
    rows = {table.name: _by_job(connection, table) for table in _TABLES}
    return [
        _job_of(
            rows[_JOBS.name][job_id][0],
            rows[_REPORTERS.name].get(job_id, []),
            rows[_POINTS.name].get(job_id, []),
            rows[_RESCALES.name].get(job_id, []),
            rows[_SPANS.name].get(job_id, []),
        )
        for job_id in sorted(rows[_JOBS.name])
    ]


def _by_job(connection: Connection, table: Table) -> dict[str, list[RowMapping]]:
    rows_by_job: dict[str, list[RowMapping]] = {}
    for row in connection.execute(select(table)).mappings():
        rows_by_job.setdefault(row["job_id"], []).append(row)
    return rows_by_job


def _rows_of(job: StoredJob) -> Rows:
    progress, key = job.progress, {"job_id": job.job_id}
    rows: dict[Table, list[Row]] = {
        _JOBS: [
            {
                **key,
                **_fields(progress, _PROGRESS_FIELDS),
                "dropped_records": job.dropped_records,
                "usual_step_seconds": job.usual_step_seconds,
            }
        ],
        _REPORTERS: [
            {**key, "reporter_id": reporter_id, **_fields(reporter, _REPORTER_FIELDS)}
            for reporter_id, reporter in job.reporters.items()
        ],
        _POINTS: [{**key, **_fields(point, _POINT_FIELDS)} for point in job.points],
        _RESCALES: [
            {**key, **_fields(rescale, _RESCALE_FIELDS), "stall_seconds": rescale.seconds} for rescale in job.rescales
        ],
        _SPANS: [{**key, "shared_levels": one.shared_levels, **_fields(one.point, _POINT_FIELDS)} for one in job.spans],
    }
    return {
        table.name: {tuple(row[column.name] for column in table.primary_key): row for row in rows_of_table}
        for table, rows_of_table in rows.items()
    }


def _job_of(
    job: RowMapping,
    reporters: list[RowMapping],
    points: list[RowMapping],
    rescales: list[RowMapping],
    spans: list[RowMapping],
) -> StoredJob:
    return StoredJob(
        job_id=job["job_id"],
        progress=JobProgress(**_select(job, _PROGRESS_FIELDS)),
        dropped_records=job["dropped_records"],
        usual_step_seconds=job["usual_step_seconds"],
        reporters={row["reporter_id"]: ReporterState(**_select(row, _REPORTER_FIELDS)) for row in reporters},
        points=tuple(
            MeasuredPoint(**_select(row, _POINT_FIELDS)) for row in sorted(points, key=lambda row: row["nodes"])
        ),
        rescales=tuple(
            MeasuredRescale(seconds=row["stall_seconds"], **_select(row, _RESCALE_FIELDS))
            for row in sorted(rescales, key=lambda row: row["number"])
        ),
        spans=tuple(
            SpanPoint(row["shared_levels"], MeasuredPoint(**_select(row, _POINT_FIELDS)))
            for row in sorted(spans, key=lambda row: (row["nodes"], row["shared_levels"]))
        ),
    )


_PROGRESS_FIELDS = tuple(JobProgress.__dataclass_fields__)
_REPORTER_FIELDS = tuple(ReporterState.__dataclass_fields__)
_POINT_FIELDS = tuple(MeasuredPoint.__dataclass_fields__)
_RESCALE_FIELDS = tuple(name for name in MeasuredRescale.__dataclass_fields__ if name != "seconds")


def _fields(item: object, names: tuple[str, ...]) -> Row:
    return {name: getattr(item, name) for name in names}


def _select(row: RowMapping, names: tuple[str, ...]) -> Row:
    return {name: row[name] for name in names}
