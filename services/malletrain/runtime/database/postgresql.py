"""PostgreSQL: connections that never wait long, and what happens while there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext

from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.database.outage import Outage
from malletrain.runtime.errors import InvalidInputError

ANSWER_SECONDS = 2
"""The longest wait for a connection, and for a transaction on an event loop."""
_THREAD_SECONDS = 30
"""The longest wait for a transaction in a thread of its own."""
_LOCK_PART = 0.75
"""So much of the time a transaction may wait for another's end: the server tells then what it waited for."""
_ABANDONED_SECONDS = 10
_MOST_CONNECTIONS = 4


def open_postgresql(address: DatabaseAddress, answer_seconds: int = ANSWER_SECONDS) -> Engine:
    """An engine for a service's schema.

    No transaction on an event loop takes longer than `answer_seconds`, nor any connection than `ANSWER_SECONDS`. Once
    the server does not answer, calls fail at once, until a thread of its own has reached it again. So an event loop is
    held up once per outage.

    Raises:
        InvalidInputError: the driver is not installed.
    """
    try:
        from psycopg import ProgrammingError

        from malletrain.runtime.database.bounded_connection import BoundedConnection
    except ModuleNotFoundError:
        raise InvalidInputError(
            "database_url", "the driver of PostgreSQL beside it: pip install 'malletrain[postgresql]'"
        ) from None
    engine = create_engine(
        address.url,
        pool_pre_ping=True,
        pool_size=1,
        max_overflow=_MOST_CONNECTIONS - 1,
        pool_timeout=ANSWER_SECONDS,
        hide_parameters=True,
        connect_args=_connection_options(address, answer_seconds),
    )

    def connect(parameters: dict[str, Any]) -> BoundedConnection:
        password = _password(address.password_file)
        try:
            connection = BoundedConnection.connect(**(parameters | password))
        except ProgrammingError as error:
            raise InvalidInputError("database_url", f"options that libpq knows ({error})") from None
        connection.loop_seconds = answer_seconds
        connection.thread_seconds = max(answer_seconds, _THREAD_SECONDS)
        connection.on_silence = outage.begin
        return connection

    outage = Outage(address, connect)
    log = structlog.get_logger(__name__).bind(database=str(address))

    def do_connect(_dialect: object, _record: object, _positional: object, parameters: dict[str, Any]) -> Any:
        return outage.connect(parameters)

    def translate(context: ExceptionContext) -> None:
        error, driver = context.original_exception, engine.dialect.loaded_dbapi
        if context.is_pre_ping or not isinstance(
            error, (driver.OperationalError, driver.InterfaceError, driver.InternalError)
        ):
            return
        log.error("the database does not answer", error=str(error))
        if context.is_disconnect or context.connection is None:
            outage.begin()
        raise DatabaseUnavailableError(address.service) from error

    event.listen(engine, "do_connect", do_connect)
    event.listen(engine, "handle_error", translate)
    event.listen(engine, "engine_disposed", lambda _: outage.end())
    return engine


def _connection_options(address: DatabaseAddress, answer_seconds: int) -> dict[str, Any]:
    longest = max(answer_seconds, _THREAD_SECONDS)
    options = {
        "search_path": address.schema,
        "statement_timeout": longest * 1000,
        "lock_timeout": round(_LOCK_PART * answer_seconds * 1000),
        "idle_in_transaction_session_timeout": (longest + _ABANDONED_SECONDS) * 1000,
    }
    return {
        "connect_timeout": ANSWER_SECONDS,
        "application_name": f"malletrain {address.service}",
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        "tcp_user_timeout": longest * 1000,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }


def _password(file: Path | None) -> dict[str, Any]:
    """Read at each connection, so that a new password is used without a restart.

    Raises:
        InvalidInputError: the file can't be read or is empty.
    """
    if file is None:
        return {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidInputError("database_password_file", f"a readable file ({error})") from None
    if not lines or not lines[0]:
        raise InvalidInputError("database_password_file", "a password in its first line")
    return {"password": lines[0]}
