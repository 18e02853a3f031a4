"""Signals that a program waits for, as for a message."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType


class AwaitedSignals:
    """Handles signals from now on, until the process ends, so that a thread can wait for them.

    Python runs a handler in the main thread, between any two of its instructions. There it may hold the lock of an
    event, of a queue or of the list of threads, and a handler that takes the same lock waits for ever. This one writes
    a byte to a pipe. Programs with an event loop of asyncio have its `add_signal_handler` instead.
    """

    def __init__(self, *numbers: signal.Signals, note: Callable[[], object] | None = None) -> None:
        """To be made in the main thread.

        Args:
            numbers: The signals.
            note: Called by the handler: it must not take a lock.
        """
        self._note = note
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        for number in numbers:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._note is not None:
            self._note()
        with suppress(BlockingIOError):  # sixty-four thousand of them have not been waited for
            os.write(self._write, b"s")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next signal. In one thread only.

        Args:
            seconds: How long; None: until there is one.

        Returns:
            Whether there is one, or was one since the last that was waited for.
        """
        if not self._poll.poll(None if seconds is None else 1000.0 * seconds):
            return False
        return bool(os.read(self._read, 1))
