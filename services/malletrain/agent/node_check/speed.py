"""`python -m malletrain.agent.node_check.speed SECONDS`: how fast one core of this node is, and its memory.

Two fixed pieces of work are repeated, and the shortest time of each counts: what else runs on the node only makes
others longer. It runs beside a standby process that boots, at the lowest priority, before the node's first worker. It
needs nothing but Python, so that all nodes do the same, and leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable

MAX_SECONDS = 1.0
"""Longest time of both together."""
_HASHED_BYTES = 1 << 20
_COPIED_BYTES = 32 << 20
"""More than the caches of most cores."""
_NICE = 19


def shortest(work: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest time of a piece of work in seconds; it is repeated for so many seconds, and done twice at least."""
    begun = before = clock()
    times: list[float] = []
    while len(times) < 2 or before - begun < seconds:
        work()
        now = clock()
        times.append(now - before)
        before = now
    return min(times)


def main(seconds: float) -> None:
    """Measure, and print."""
    os.nice(_NICE)
    print("begun", flush=True)
    each = min(seconds, MAX_SECONDS) / 2
    hashed, source, target = bytes(_HASHED_BYTES), bytes(_COPIED_BYTES), memoryview(bytearray(_COPIED_BYTES))

    def copy() -> None:
        target[:] = source

    hash_seconds = shortest(lambda: hashlib.sha256(hashed).digest(), each)
    print(json.dumps({"hash_seconds": hash_seconds, "copy_seconds": shortest(copy, each)}), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
