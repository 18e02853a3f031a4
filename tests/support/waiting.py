"""Waiting for a condition with a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 0.02
_MAX_PAUSE = 0.5


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, what: str = "the condition") -> T:
    """Poll until the predicate is truthy and return its value; AssertionError after `timeout` seconds.

    A predicate that takes long, such as a command, pauses for longer: others need the CPU, too.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        begin = time.monotonic()
        value = predicate()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        pause.wait(min(max(_PAUSE, 2 * (now - begin)), _MAX_PAUSE))


async def wait_until_async(predicate: Callable[[], T], timeout: float = 10.0, what: str = "the condition") -> T:
    """The same without blocking the event loop."""
    async with asyncio.timeout(timeout + 1):
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            value = predicate()
            if value:
                return value
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{what} did not come true within {timeout} s")
            await asyncio.sleep(_PAUSE)
