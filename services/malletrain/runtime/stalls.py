"""What keeps a service's event loop from its work: garbage collections are kept short, long standstills are logged."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import structlog

_WHOLE_SECONDS, _LOOK_SECONDS = 3600.0, 60.0
_OLDEST = 2
_THRESHOLDS = (700, 6, 4)
"""Python's are 700, 10, 10. With these a collection of the oldest generation is due after a quarter as many objects:
where a thousand jobs are busy, those of JobManager took 20 to 77 ms of CPU time, and 81 to 88 before."""
_GROWTH, _MIN_GROWTH = 2, 200_000


class _Collections:
    """Is told of each collection, and leaves out of later ones what one of the oldest generation has found alive."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._whole_at = self._looked_at = monotonic()
        self._is_whole = True
        self._max_frozen = 0

    def note(self, phase: str, info: Mapping[str, int]) -> None:
        """A callback of `gc`."""
        if info["generation"] < _OLDEST:
            return
        if phase == "start":
            if self._must_be_whole(self._monotonic()):
                self._is_whole = True
                gc.unfreeze()
            return
        gc.freeze()
        if self._is_whole:
            self._is_whole, self._whole_at = False, self._monotonic()
            self._max_frozen = _GROWTH * gc.get_freeze_count() + _MIN_GROWTH

    def _must_be_whole(self, now: float) -> bool:
        if now - self._whole_at >= _WHOLE_SECONDS:
            return True
        if now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now  # it counts them one by one
        return gc.get_freeze_count() > self._max_frozen


@contextmanager
def short_collections(monotonic: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Leave out of later collections what one of the oldest generation has found alive, until the block is left.

    Most of that stays, and of a thousand jobs it takes 0.2 s to look through. References alone still free it; what only
    refers to itself is found by the next collection of all objects. There is one an hour, and one when twice as many
    objects are left out as after the last one.

    Args:
        monotonic: Seconds of a clock that never goes back.
    """
    collections, thresholds = _Collections(monotonic), gc.get_threshold()
    gc.callbacks.append(collections.note)
    gc.set_threshold(*_THRESHOLDS)
    try:
        gc.collect()
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collections.note)
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
                step=_name_of(getattr(handle, "_callback", None)),
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


def _name_of(callback: object) -> str:
    """What a step belongs to: a task by its name and coroutine, otherwise the function."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine: Any = owner.get_coro()
        return f"{owner.get_name()}: {getattr(coroutine, '__qualname__', coroutine)}"
    return str(getattr(callback, "__qualname__", callback))


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)
