"""A connection to PostgreSQL that gives up when the server does not answer. Needs psycopg."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from typing_extensions import override

AnswerT = TypeVar("AnswerT")


class BoundedConnection(psycopg.Connection[Any]):
    """Waits so long for each answer, then closes itself: the server may hang and its machine still be there.

    `statement_timeout` is the server's, and a server that hangs does not keep it.

    Attributes:
        answer_seconds: The longest wait.
        on_silence: Called when it was too long.
    """

    answer_seconds = 2.0
    on_silence: Callable[[], None] | None = None

    @override
    def wait(self, gen: PQGen[AnswerT], *arguments: Any, **options: Any) -> AnswerT:
        """Wait for an operation.

        Raises:
            psycopg.OperationalError: it takes too long. The connection is closed then.
        """
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: PQGen[AnswerT]) -> PQGen[AnswerT]:
        deadline = time.monotonic() + self.answer_seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    if self.on_silence is not None:
                        self.on_silence()
                    raise psycopg.OperationalError(f"the server has not answered for {self.answer_seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            answer: AnswerT = end.value
            return answer
