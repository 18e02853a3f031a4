"""A connection to PostgreSQL that gives up when the server does not answer. Needs psycopg."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from typing_extensions import override

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
