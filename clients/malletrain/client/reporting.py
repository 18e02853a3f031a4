"""The function `report`: writes one record per global batch to the ring, without a system call."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Protocol

from malletrain.client.ring import RECORD, RECORD_OFFSET, RECORD_SHIFT, Ring

CHECK_NS = 100_000_000
"""Time between two checks of rank, number of workers and sidecar, in nanoseconds."""

MAX_SAMPLES = 2**40
"""Largest global batch that Monitor accepts."""

MAX_POSITION = 2**60
"""Largest sample position that Monitor accepts."""

MAX_WORKERS = 2**24
"""Largest number of worker processes that Monitor accepts."""


class ReportFunction(Protocol):
    """The type of `report`."""

    def __call__(self, samples: int, position: int | None = None, workers: int | None = None) -> None:
        """Report one global batch."""


class ReportContext(Protocol):
    """What `report` asks at intervals: where to write and how many workers there are."""

    def check(self, now_ns: int) -> tuple[Ring | None, int]:
        """The ring to write to (None: this process does not report; a new one is empty) and the number of workers."""

    def reject(self, error: Exception) -> None:
        """Count an invalid call of `report`, and warn."""


def make_report(context: ReportContext, clock: Callable[[], int]) -> tuple[ReportFunction, Callable[[], None]]:
    """Make `report`, and a function that makes its next call ask the context again.

    Everything that a call needs is a variable of the closure: an attribute look-up costs as much as writing the record.

    Args:
        context: Asked every 100 ms at most.
        clock: Nanoseconds since the epoch.
    """
    pack_into = RECORD.pack_into
    base, step, max_samples, max_position = RECORD_OFFSET, 1 << RECORD_SHIFT, MAX_SAMPLES, MAX_POSITION
    nothing = memoryview(bytearray())
    ring: Ring | None = None
    buffer = nothing
    sequence = offset = end = 0
    world = 1
    checked = due = 0

    def look(now: int) -> None:
        nonlocal ring, buffer, sequence, offset, end, world, checked, due
        # Set before the check: one that fails is not repeated at every batch.
        checked, due = now, now + CHECK_NS
        found, world = context.check(now)
        if found is not ring:
            ring = found
            buffer = nothing if found is None else memoryview(found.buffer)[: found.end_of_records]
            sequence, offset, end = 0, base, len(buffer)

    def report(samples: int, position: int | None = None, workers: int | None = None) -> None:
        """Report that one global batch has been trained: the one line in the training loop.

        Call it after the optimizer step, from one thread. Only calls at rank 0 count, so every worker may call it.
        Outside MalleTrain it does nothing. It never raises, waits or makes a system call. A call with invalid arguments
        is ignored, with one warning on stderr.

        Args:
            samples: Samples in this step over all workers (the global batch), 0 to 2**40.
            position: The job's own sample counter after this step. With it MalleTrain detects rollbacks.
            workers: Number of worker processes; detected if left out.
        """
        nonlocal sequence, offset
        try:
            now = clock()
            if not checked <= now < due:
                look(now)
            if ring is None:
                return
            if type(samples) is not int or not 0 <= samples <= max_samples:
                samples = _within("samples", samples, 0, MAX_SAMPLES)
            if position is None:
                position = -1
            elif type(position) is not int or not 0 <= position <= max_position:
                position = _within("position", position, 0, MAX_POSITION)
            workers = world if workers is None else _within("workers", workers, 1, MAX_WORKERS)
            # Before the record is written: a signal handler can interrupt at a call only, so that no number is used
            # twice or left out.
            sequence += 1
            offset += step
            if offset == end:
                offset = base
            # The largest number last: the partial sums fit into one machine word.
            check = sequence + samples + position + workers + now
            pack_into(buffer, offset, sequence, now, samples, position, workers, check)
        except Exception as error:  # noqa: BLE001 - whatever happens here, the training loop continues
            context.reject(error)

    def expire() -> None:
        nonlocal checked, due
        checked = due = 0

    return report, expire


def new_reporter_id(node: str) -> str:
    """A unique identifier of this process as a reporter."""
    return f"{node or os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}"[-256:]


def _within(name: str, value: int, least: int, most: int) -> int:
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} to {most}, got {number}")
    return number
