"""Records the idle set as the Scavenger tells it. Nothing waits for that: rows are stored from a thread."""

from __future__ import annotations

import asyncio

import structlog

from malletrain.allocator.idle_history import IdleHistory
from malletrain.allocator.idle_store import IdleStore
from malletrain.runtime.clock import Clock
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import scavenger_pb2

_TOGETHER_SECONDS = 1.0
"""Changes within this time are stored in one transaction. A kill loses so much of the history at most."""


class IdleRecording:
    """Makes rows of the Scavenger's messages and has them stored."""

    def __init__(self, store: IdleStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._history = IdleHistory()
        self._news = asyncio.Event()
        self._log = structlog.get_logger(__name__)

    def note(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        """Take over a message."""
        now = unix_seconds(message.event_time) if message.HasField("event_time") else self._clock.time()
        joined = {
            node.name: unix_seconds(node.idle_since) if node.HasField("idle_since") else now for node in message.joined
        }
        self._history.note(now, joined, message.left, snapshot=message.snapshot)
        self._news.set()

    async def run(self) -> None:
        """Store rows until cancelled; then what is left is stored."""
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(_TOGETHER_SECONDS)
                self._news.clear()
                await self._write()
        finally:
            self._store_all()

    async def _write(self) -> None:
        rows = self._history.unstored()
        storing = asyncio.ensure_future(asyncio.to_thread(self._store.add, rows))
        try:
            # A thread can't be cancelled: what it stores must be known before the rest is stored.
            await asyncio.shield(storing)
        except asyncio.CancelledError:
            if not isinstance((await asyncio.gather(storing, return_exceptions=True))[0], BaseException):
                self._history.stored(rows)
            raise
        except DatabaseUnavailableError as error:
            self._log.error("the idle set's history could not be stored, trying again", error=str(error))
            self._news.set()
        else:
            self._history.stored(rows)

    def _store_all(self) -> None:
        rows = self._history.unstored()
        try:
            self._store.add(rows)
        except DatabaseUnavailableError as error:
            self._log.error("the end of the idle set's history could not be stored", error=str(error), rows=len(rows))
