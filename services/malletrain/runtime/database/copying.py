"""Copies of a service's tables as SQLite files, whatever the database they come from, and back."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, MetaData, Table, create_engine, event, func, insert, select, text
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.pool import NullPool

from malletrain.common.files import sync_directory

_ROWS = 1000


def sqlite_file(file: Path) -> Engine:
    """An engine for a SQLite file that no service uses."""
    return create_engine(URL.create("sqlite", database=str(file)), poolclass=NullPool)


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a SQLite database, also while it is written to: the copy is the state at one moment.

    Raises:
        sqlite3.Error, OSError: it can't be copied; `target` does not exist then.
    """

    def fill(file: Path) -> None:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as present,
            closing(sqlite3.connect(file)) as copy,
        ):
            present.backup(copy)
            # Else whoever opens the copy needs write access beside it.
            copy.execute("PRAGMA journal_mode=DELETE")

    _write_whole(target, fill)


def copy_from(connection: Connection, target: Path) -> None:
    """Copy the tables of a service into a new SQLite file.

    Args:
        connection: Its transaction must be repeatable, for the tables to be of one moment.
        target: The file.

    Raises:
        OSError, sqlalchemy.exc.SQLAlchemyError: they can't be copied; `target` does not exist then.
    """
    metadata = _tables(connection)

    def fill(file: Path) -> None:
        engine = sqlite_file(file)
        with engine.begin() as copy:
            metadata.create_all(copy)
            for table in metadata.sorted_tables:
                _copy_rows(connection, copy, table)

    _write_whole(target, fill)


def copy_into(source: Path, connection: Connection) -> None:
    """Replace all rows of a service's tables, which are there, by those of a SQLite copy of the same revision.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the copy has other tables, or can't be read.
    """
    metadata = _tables(connection)
    engine = sqlite_file(source)
    with engine.connect() as copy:
        for table in metadata.sorted_tables:
            connection.execute(table.delete())
            _copy_rows(copy, connection, table)
            _advance_sequences(connection, table)


def _tables(connection: Connection) -> MetaData:
    """The tables that there are, with types that every database has."""
    metadata = MetaData()

    def generic(_inspector: Any, _table: Table, column: ReflectedColumn) -> None:
        column["type"] = column["type"].as_generic()
        column["default"] = None

    event.listen(metadata, "column_reflect", generic)
    metadata.reflect(connection)
    for table in metadata.tables.values():
        for column in table.columns:
            column.autoincrement = False
    return metadata


def _copy_rows(source: Connection, target: Connection, table: Table) -> None:
    mappings = source.execute(select(table).execution_options(yield_per=_ROWS)).mappings()
    for rows in mappings.partitions():
        target.execute(insert(table), [dict(row) for row in rows])


def _advance_sequences(connection: Connection, table: Table) -> None:
    """PostgreSQL numbers new rows by sequences, which know nothing of the rows that were copied."""
    if connection.dialect.name != "postgresql":
        return
    for column in table.primary_key:
        sequence = connection.scalar(
            text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table.name, "column": column.name}
        )
        if sequence is not None:
            last = connection.scalar(select(func.max(column)))
            connection.execute(
                text("SELECT setval(:sequence, :last, :used)"),
                {"sequence": sequence, "last": last or 1, "used": last is not None},
            )


def _write_whole(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a private file beside the target, bring it to disk, and give it its name."""
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        fill(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)
