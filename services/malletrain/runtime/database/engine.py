"""Engines of SQLAlchemy for the services' databases."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext

from malletrain.runtime.database.address import ANSWER_SECONDS, DatabaseAddress
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.errors import InvalidInputError

_SQL_LOGIC_ERROR = 1
"""SQLITE_ERROR: the statement itself is wrong. Anything else may pass: a full disk, another writer."""


def open_engine(address: DatabaseAddress, answer_seconds: int = ANSWER_SECONDS) -> Engine:
    """An engine for the database of a service, as it is: see `migrating.open_database` for one with its tables.

    SQLite runs in WAL mode with foreign keys on and waits up to 5 s for another writer; its folder is made if needed.
    A committed transaction survives a kill of the process. What may pass is raised as DatabaseUnavailableError.

    Args:
        address: The database.
        answer_seconds: The longest transaction on an event loop with PostgreSQL.

    Raises:
        InvalidInputError: PostgreSQL's driver is not installed.
    """
    if not address.url:
        return _open_sqlite(address)
    try:
        # Only here: the driver is an extra of its own, and takes 8 MiB in each service.
        from malletrain.runtime.database.postgresql import open_postgresql
    except ModuleNotFoundError:
        raise InvalidInputError(
            "database_url", "the driver of PostgreSQL beside it: pip install 'malletrain[postgresql]'"
        ) from None
    return open_postgresql(address, answer_seconds)


def _open_sqlite(address: DatabaseAddress) -> Engine:
    engine = create_engine(URL.create("sqlite", database=str(address.file)))
    _make_private(address.file)
    log = structlog.get_logger(__name__).bind(database=str(address))

    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def translate(context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", 0) != _SQL_LOGIC_ERROR:
            log.error("the database does not answer", error=str(error))
            raise DatabaseUnavailableError(address.service) from error

    event.listen(engine, "connect", prepare)
    event.listen(engine, "handle_error", translate)
    return engine


def _make_private(database: Path) -> None:
    """Let only our account read a database, which has what users submit. SQLite gives its other files the same mode."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.open("ab"):
        pass
    for path in database.parent.glob(f"{database.name}*"):
        with suppress(FileNotFoundError):  # the last connection of another process just closed, and removed it
            path.chmod(0o600)
