"""While a database server can't be reached: nobody waits for it but one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.errors import DatabaseUnavailableError

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0


class _Closable(Protocol):
    def close(self) -> None: ...


class Outage:
    """Refuses connections at once from the first that failed on, until a thread of its own has got one."""

    def __init__(self, address: DatabaseAddress, connect: Callable[[dict[str, Any]], _Closable]) -> None:
        """There is none yet.

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
        threading.Thread(target=self._reach, name="database", daemon=True, args=(self._parameters,)).start()

    def end(self) -> None:
        """The engine is not used any more."""
        self._ended.set()

    def _reach(self, parameters: dict[str, Any]) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._ended.is_set():
            try:
                self._connect(parameters).close()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed
                self._log.warning("the database can't be reached, trying again", error=str(error))
            else:
                self._away.clear()
                self._log.info("the database is back")
                return
            self._ended.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
