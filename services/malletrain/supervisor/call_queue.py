"""How other threads speak to the supervisor's one thread of decisions."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

AnswerT = TypeVar("AnswerT")

_ANSWER_SECONDS = 0.2


class CallQueue(Generic[AnswerT]):
    """Events in order of arrival, some of which are questions."""

    def __init__(self, last_word: Callable[[], AnswerT]) -> None:
        """Open.

        Args:
            last_word: The answer to questions that are still open when the inbox is closed.
        """
        self._last_word = last_word
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self._closed = threading.Event()

    def put(self, event: Callable[[], None]) -> None:
        """Have something done in the thread that calls `handle`."""
        self._calls.put(event)

    def ask(self, act: Callable[[Future[AnswerT]], None]) -> AnswerT:
        """Have something done there, and wait until it has set its answer, or the inbox is closed."""
        done: Future[AnswerT] = Future()
        self._calls.put(lambda: act(done))
        while not self._closed.is_set():
            try:
                return done.result(_ANSWER_SECONDS)
            except TimeoutError:
                continue  # the end may come before it is its turn
        return self._last_word()

    def handle(self, patience_seconds: float) -> None:
        """Do what has come; wait for something first, but only so long."""
        try:
            self._calls.get(timeout=patience_seconds)()
            while True:
                self._calls.get_nowait()()
        except queue.Empty:
            return

    def close(self) -> None:
        """Nothing is handled any more."""
        self._closed.set()
