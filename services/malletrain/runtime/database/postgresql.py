"""PostgreSQL: connections that never wait long, and what happens while there are none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psycopg
import structlog
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from typing_extensions import override

from malletrain.common.backoff import Backoff
from malletrain.common.tasks import start_thread
from malletrain.runtime.database.address import ANSWER_SECONDS, DatabaseAddress
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.errors import InvalidInputError

AnswerT = TypeVar("AnswerT")


class BoundedConnection(psycopg.Connection[Any]):
    """Takes a limited time for a transaction, then closes itself: the server may hang and its machine still be there.

    `statement_timeout` is the server's, and a server that hangs does not keep it.

    Attributes:
        loop_seconds: The limit on an event loop, which nobody may hold up.
        thread_seconds: The limit in any other thread.
        on_silence: Called when it took longer.
    """

    loop_seconds = 2.0
    thread_seconds = 30.0
    on_silence: Callable[[], None] | None = None
    _began = 0.0

    @override
    def wait(self, gen: PQGen[AnswerT], *arguments: Any, **options: Any) -> AnswerT:
        """Wait for an operation.

        Raises:
            psycopg.OperationalError: its transaction takes too long. The connection is closed then.
        """
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            self._began = time.monotonic()
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: PQGen[AnswerT]) -> PQGen[AnswerT]:
        limit = self.loop_seconds if _on_event_loop() else self.thread_seconds
        try:
            wanted = next(gen)
            while time.monotonic() < self._began + limit:
                ready = yield wanted
                wanted = gen.send(ready)
        except StopIteration as end:
            answer: AnswerT = end.value
            return answer
        self.pgconn.finish()
        if self.on_silence is not None:
            self.on_silence()
        raise psycopg.OperationalError(f"the server has not answered within {limit:g} s")


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 1.0


class _Closable(Protocol):
    def close(self) -> None: ...


class Outage:
    """Refuses connections at once from the first that failed on, until a thread of its own has got one."""

    def __init__(self, address: DatabaseAddress, connect: Callable[[dict[str, Any]], _Closable]) -> None:
        """
        Args:
            address: The database.
            connect: Opens a connection with these parameters.
        """
        self._address = address
        self._connect = connect
        self._parameters: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._away = threading.Event()
        self._ended = threading.Event()
        self._log = structlog.get_logger(__name__).bind(database=str(address))

    def connect(self, parameters: dict[str, Any]) -> _Closable:
        """A new connection.

        Raises:
            DatabaseUnavailableError: there is an outage.
        """
        if self._away.is_set():
            raise DatabaseUnavailableError(self._address.service)
        self._parameters = dict(parameters)
        return self._connect(parameters)

    def begin(self) -> None:
        """A connection was lost or could not be opened."""
        with self._lock:
            if self._away.is_set() or self._ended.is_set() or self._parameters is None:
                return
            self._away.set()
        parameters = self._parameters
        start_thread(lambda: self._reach(parameters), "database")

    def end(self) -> None:
        """The engine is not used any more."""
        self._ended.set()

    def _reach(self, parameters: dict[str, Any]) -> None:
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while not self._ended.is_set():
            try:
                self._connect(parameters).close()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed
                self._log.warning("the database can't be reached, trying again", error=str(error))
            else:
                self._away.clear()
                self._log.info("the database is back")
                return
            self._ended.wait(backoff.fail())


_THREAD_SECONDS = 30
"""The longest wait for a transaction in a thread of its own."""
_LOCK_PART = 0.75
"""So much of the time a transaction may wait for another's end: the server tells then what it waited for."""
_ABANDONED_SECONDS = 10
_MAX_CONNECTIONS = 4


def open_postgresql(address: DatabaseAddress, answer_seconds: int) -> Engine:
    """An engine for a service's schema.

    No transaction on an event loop takes longer than `answer_seconds`, nor any connection than `ANSWER_SECONDS`. Once
    the server does not answer, calls fail at once, until a thread of its own has reached it again. So an event loop is
    held up once per outage.
    """
    engine = create_engine(
        address.url,
        pool_pre_ping=True,
        pool_size=1,
        max_overflow=_MAX_CONNECTIONS - 1,
        pool_timeout=ANSWER_SECONDS,
        hide_parameters=True,
        connect_args=_connection_options(address, answer_seconds),
    )

    def connect(parameters: dict[str, Any]) -> BoundedConnection:
        password = _password(address.password_file)
        try:
            connection = BoundedConnection.connect(**(parameters | password))
        except psycopg.ProgrammingError as error:
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
