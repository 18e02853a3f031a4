"""Follows the stream of another service across its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TypeVar

import grpc.aio
import structlog

from malletrain.common.backoff import Backoff
from malletrain.runtime.pieces import Joined

MessageT = TypeVar("MessageT")

_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0


async def follow(
    name: str,
    open_stream: Callable[[], AsyncIterable[MessageT]],
    handle: Callable[[MessageT], Awaitable[None]],
    on_lost: Callable[[], None] | None = None,
) -> None:
    """Handle every message of a server stream, and those that go on as one.

    Open the stream again, with back-off, whenever it breaks or ends.

    Runs until cancelled. Errors of `handle` are raised.

    Args:
        name: What is followed, for the log.
        open_stream: Makes the call; its first message is expected to be a snapshot.
        handle: Called with each message, one at a time.
        on_lost: Called when a stream breaks that had delivered something.
    """
    log = structlog.get_logger(__name__).bind(stream=name)
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    while True:
        delivered = False
        try:
            joined = Joined()
            async for message in open_stream():
                delivered = True
                if (whole := joined.add(message)) is not None:
                    await handle(whole)
            code = "ENDED"
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        if delivered:
            backoff.succeed()
            if on_lost is not None:
                on_lost()
        pause = backoff.fail()
        log.info("stream lost, opening it again", code=code, pause_seconds=pause)
        await asyncio.sleep(pause)
