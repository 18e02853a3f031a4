"""Notices that an event loop stands still, from a thread: a signal that asks a process to end is not noticed then."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable

from malletrain.common.tasks import start_thread

_LOOK_SECONDS = 1.0
_MAX_LOOKS = 30


class StandstillWatch:
    """Looks once a second whether the loop has turned since. Looks count, not time: the machine may have slept."""

    def __init__(
        self, on_standstill: Callable[[], object], look_seconds: float = _LOOK_SECONDS, max_looks: int = _MAX_LOOKS
    ) -> None:
        """Watch the running event loop from now on.

        Args:
            on_standstill: Called in another thread, once, when the loop stands still.
            look_seconds: Time between two looks.
            max_looks: How many looks in a row may find that it has not turned.
        """
        self._on_standstill = on_standstill
        self._look_seconds = look_seconds
        self._max_looks = max_looks
        self._loop = asyncio.get_running_loop()
        self._turned = threading.Event()
        self._closed = threading.Event()
        # Without this thread nobody would notice: its end counts as a standstill, which has the node left, too.
        start_thread(self._watch, "standstill", self._note_failure)

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()

    def _note_failure(self, error: BaseException) -> None:
        traceback.print_exception(error, file=sys.stderr)
        self._on_standstill()

    def _watch(self) -> None:
        missed = 0
        self._loop.call_soon_threadsafe(self._turned.set)
        while not self._closed.wait(self._look_seconds):
            if self._turned.is_set():
                missed = 0
                self._turned.clear()
                if self._loop.is_closed():
                    return
                self._loop.call_soon_threadsafe(self._turned.set)
                continue
            missed += 1
            if missed >= self._max_looks:
                self._on_standstill()
                return
