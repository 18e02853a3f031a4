"""What keeps a service's event loop from its work: garbage collections are kept short, long standstills are logged."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import structlog

_WHOLE_SECONDS = 3600.0
_OLDEST = 2


@contextmanager
def short_collections(monotonic: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Leave out of later collections what one of the oldest generation has found alive, until the block is left.

    Most of that stays, and of a thousand jobs it takes 0.2 s to look through. References alone still free it; what only
    refers to itself is found by the next collection of all objects, of which there is one an hour.

    Args:
        monotonic: Seconds of a clock that never goes back.
    """
    whole_at = monotonic()

    def collected(phase: str, info: Mapping[str, int]) -> None:
        nonlocal whole_at
        if info["generation"] < _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif monotonic() - whole_at >= _WHOLE_SECONDS:
            whole_at = monotonic()
            gc.unfreeze()

    gc.callbacks.append(collected)
    try:
        gc.collect()
        yield
    finally:
        gc.callbacks.remove(collected)
        gc.unfreeze()


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
