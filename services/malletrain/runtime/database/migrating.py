"""Opens a service's database with the tables of this version, and upgrades those of earlier ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import structlog
from sqlalchemy import Connection, Engine, MetaData, inspect, text
from sqlalchemy.exc import ProgrammingError

from malletrain.common.files import make_private_folder
from malletrain.runtime.clock import Clock, SystemClock
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.copying import copy_from, copy_sqlite
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.database.schema_history import SchemaHistory, revision_of
from malletrain.runtime.errors import MalleTrainError

RESTORE_FOLDER = "restore.new"
"""Folder in the state folder in which a backup is unpacked."""
RESTORE_MARKER = "complete.json"
"""File in it, once all is unpacked and checked."""


def restore_is_open(state_dir: Path) -> bool:
    """Whether a restore has begun to replace what is there."""
    return (state_dir / RESTORE_FOLDER / RESTORE_MARKER).exists()


def check_no_restore(state_dir: Path) -> None:
    """Refuse to go on in the middle of a restore.

    Raises:
        MalleTrainError: there is one.
    """
    if restore_is_open(state_dir):
        raise MalleTrainError(f"a restore of {state_dir} was interrupted: `malletrain restore --continue` finishes it")


BACKUPS_FOLDER = "backups"
"""Folder in the state folder with copies of databases as they were before an upgrade."""
_COPIES_KEPT = 3
_START_SECONDS = 30.0
"""How long a start waits for a database server, which may just be starting, too."""
_PAUSE_SECONDS = 0.5
PATIENT_SECONDS = 3600
"""The longest transaction of an upgrade or a backup."""


def open_database(address: DatabaseAddress, metadata: MetaData | None = None) -> Engine:
    """The database of a service, with the tables of this version.

    Args:
        address: The database.
        metadata: As for `upgrade_database`.

    Raises:
        InvalidInputError: the database can't be used with these settings.
        SchemaVersionError: the tables are of a later version.
        MalleTrainError: a restore was interrupted, the server could not be reached for half a minute, or the account
            may not do what is needed.
        OSError: no copy could be made before an upgrade. The tables are as they were.
    """
    check_no_restore(address.state_dir)
    give_up = time.monotonic() + _START_SECONDS
    while True:
        try:
            upgrade_database(address, metadata=metadata)
            return open_engine(address)
        except DatabaseUnavailableError as error:
            if time.monotonic() > give_up:
                raise MalleTrainError(f"{address} can't be reached: {error.__cause__ or error}") from error
            time.sleep(_PAUSE_SECONDS)
        except ProgrammingError as error:
            raise MalleTrainError(f"{address} can't be used: {error.orig}") from error


def upgrade_database(
    address: DatabaseAddress,
    history: SchemaHistory | None = None,
    clock: Clock | None = None,
    metadata: MetaData | None = None,
) -> None:
    """Bring the tables of a service to the newest revision: completely or not at all, also where the process is killed.

    What is there is copied to `STATE_DIR/backups` before. Of two processes that try it at once, one waits.

    Args:
        address: The database.
        history: Its revisions; None: those of this version.
        clock: For the names of copies.
        metadata: The tables as the code has them, to make them where there are none; None: all revisions make them.

    Raises:
        As `open_database`.
    """
    history = history or SchemaHistory(address.service)
    engine = open_engine(address, PATIENT_SECONDS)
    try:
        with exclusive(engine, address) as connection:
            revision = revision_of(connection)
            if revision == history.newest:
                return
            history.check(revision, address)
            if inspect(connection).get_table_names():
                copy = _copy_before_upgrade(connection, address, revision, clock or SystemClock())
                structlog.get_logger(__name__).info(
                    "upgrading", database=str(address), revision=revision, to=history.newest, copy=str(copy)
                )
                history.upgrade(connection)
            elif metadata is None:
                history.upgrade(connection)
            else:
                history.create(connection, metadata)
    finally:
        engine.dispose()


@contextmanager
def exclusive(engine: Engine, address: DatabaseAddress) -> Iterator[Connection]:
    """A transaction in which nobody else changes the tables, and in which changes of tables can be undone, too."""
    if address.url:
        with engine.begin() as connection:
            lock_schema(connection, address.schema)
            yield connection
        return
    # Python's driver would begin a transaction only at the first change of a row.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, connection.begin():
        connection.exec_driver_sql(f"PRAGMA busy_timeout={PATIENT_SECONDS * 1000}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def lock_schema(connection: Connection, schema: str) -> None:
    """Have a schema for ourselves until the end of the transaction; it is made if needed."""
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:schema, 0))"), {"schema": schema})
    known = text("SELECT 1 FROM pg_namespace WHERE nspname = :schema")
    # Asked before, so that an account which may make no schemas can use one that was made for it.
    if connection.scalar(known, {"schema": schema}) is None:
        connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')


def _copy_before_upgrade(connection: Connection, address: DatabaseAddress, revision: str | None, clock: Clock) -> Path:
    folder = address.state_dir / BACKUPS_FOLDER
    make_private_folder(folder)
    moment = f"{datetime.fromtimestamp(clock.time(), UTC):%Y%m%dT%H%M%S.%f}Z"
    target = folder / f"{address.service}-{moment}-{revision or 'before-revisions'}.sqlite"
    if address.url:
        copy_from(connection, target)
    else:
        copy_sqlite(address.file, target)
    for old in sorted(folder.glob(f"{address.service}-*.sqlite"))[:-_COPIES_KEPT]:
        old.unlink(missing_ok=True)
    return target
