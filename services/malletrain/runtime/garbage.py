"""Keeps garbage collections short: the event loop stands still meanwhile, and a release with it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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
