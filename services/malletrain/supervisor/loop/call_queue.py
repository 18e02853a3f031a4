"""How other threads speak to the supervisor's main thread, which makes all decisions."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

AnswerT = TypeVar("AnswerT")

_ANSWER_SECONDS = 0.2


class CallQueue(Generic[AnswerT]):
    """Calls in order of arrival, some of which have an answer."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self._last: Future[AnswerT] = Future()

    def put(self, event: Callable[[], None]) -> None:
        """Have something done in the thread that calls `handle`."""
        self._calls.put(event)

    def ask(self, act: Callable[[Future[AnswerT]], None]) -> AnswerT:
        """Have something done there, and wait until it has set its answer, or the queue is closed."""
        done: Future[AnswerT] = Future()
        self._calls.put(lambda: act(done))
        while not self._last.done():
            try:
                return done.result(_ANSWER_SECONDS)
            except TimeoutError:
                continue  # the end may come before it is its turn
        return self._last.result()

    def handle(self, patience_seconds: float) -> None:
        """Do what has come; wait for something first, but only so long."""
        try:
            self._calls.get(timeout=patience_seconds)()
            while True:
                self._calls.get_nowait()()
        except queue.Empty:
            return

    def close(self, last: AnswerT) -> None:
        """Handle nothing any more."""
        self._last.set_result(last)
