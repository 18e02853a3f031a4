"""Waiting for a condition with a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 0.02


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, what: str = "the condition") -> T:
    """Poll until the predicate is truthy and return its value; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        pause.wait(_PAUSE)


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
