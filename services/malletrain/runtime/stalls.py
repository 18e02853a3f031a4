"""Logs what keeps a service's event loop busy for long: nothing else goes on meanwhile, not even a release."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import structlog


@contextmanager
def stalls_logged(min_seconds: float) -> Iterator[None]:
    """Log long steps of this process's event loops, and long garbage collections, until the block is left.

    A step is one callback, or what a task does until it waits. Logged are the time that it took and the CPU time of its
    thread: what is missing it spent waiting, for the interpreter, a processor or a disk.

    Args:
        min_seconds: What takes longer is logged, in seconds; 0: nothing is.
    """
    if min_seconds <= 0:
        yield
        return
    log, handles = structlog.get_logger(__name__), cast(Any, asyncio.Handle)
    plain = handles._run
    begun = cpu_begun = 0.0

    def timed(handle: asyncio.Handle) -> None:
        begin, cpu = time.perf_counter(), time.thread_time()
        plain(handle)
        seconds = time.perf_counter() - begin
        if seconds > min_seconds:
            log.warning(
                "stall",
                step=_named(getattr(handle, "_callback", None)),
                ms=_milliseconds(seconds),
                cpu_ms=_milliseconds(time.thread_time() - cpu),
            )

    def collected(phase: str, info: dict[str, Any]) -> None:
        nonlocal begun, cpu_begun
        if phase == "start":
            begun, cpu_begun = time.perf_counter(), time.thread_time()
        elif (seconds := time.perf_counter() - begun) > min_seconds:
            log.warning(
                "stall",
                step=f"garbage collection of generation {info['generation']}",
                ms=_milliseconds(seconds),
                cpu_ms=_milliseconds(time.thread_time() - cpu_begun),
            )

    handles._run = timed
    gc.callbacks.append(collected)
    try:
        yield
    finally:
        gc.callbacks.remove(collected)
        handles._run = plain


def _named(callback: object) -> str:
    """What a step belongs to: a task by its name and coroutine, otherwise the function."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine: Any = owner.get_coro()
        return f"{owner.get_name()}: {getattr(coroutine, '__qualname__', coroutine)}"
    return str(getattr(callback, "__qualname__", callback))


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)
