"""Reads the messages of calls that were admitted: few of one caller at a time, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from malletrain.runtime.admission.counts import Caller, CallKind

_AT_ONCE = {CallKind.KNOWN: 8, CallKind.UNKNOWN: 4}
"""Messages of one caller that are read at a time; each may hold as much as the largest message. Others wait unread."""
_STRANGERS_STREAM_SECONDS = 60.0
"""How long a stream of messages of somebody without a token may take: gRPC reflection takes less than a second."""


class _Slots:
    """How many messages of one caller may still be read, and how many calls are waiting or reading."""

    def __init__(self, at_once: int) -> None:
        self.free = asyncio.Semaphore(at_once)
        self.users = 0


class MessageReader:
    """Takes the messages of calls."""

    def __init__(self, seconds: float) -> None:
        """Read nothing yet.

        Args:
            seconds: How long the message of a call may take to arrive.
        """
        self._seconds = seconds
        self._slots: dict[Caller, _Slots] = {}

    async def take(self, caller: Caller, context: Any) -> Any:
        """The message of a call that has one. Ends the call if it does not come in time.

        Args:
            caller: Who makes the call.
            context: The call.
        """
        try:
            async with asyncio.timeout(self._seconds):
                if caller.bounded:
                    async with self._slot(caller):
                        message = await context.read()
                else:
                    message = await context.read()
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the message of this call did not arrive within {self._seconds:g} s (limits.first_message_seconds)",
            )
        if message is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call of this method has a message")
        return message

    @asynccontextmanager
    async def stream(self, caller: Caller) -> AsyncIterator[None]:
        """While a stream of messages is read. One of a stranger counts as a message that is read all the time.

        Raises:
            TimeoutError: it is one of a stranger, and has taken too long.
        """
        if caller.kind is CallKind.KNOWN:
            yield
            return
        async with asyncio.timeout(_STRANGERS_STREAM_SECONDS), self._slot(caller):
            yield

    @asynccontextmanager
    async def _slot(self, caller: Caller) -> AsyncIterator[None]:
        slots = self._slots.get(caller)
        if slots is None:
            slots = self._slots[caller] = _Slots(_AT_ONCE[caller.kind])
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[caller]
