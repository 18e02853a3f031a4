"""Which records of a batch end steady steps, found over whole columns. Pure.

Most records of a job differ from the one before by their time and position only. Such spans are counted as a whole,
which is several times as fast as record by record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.monitor.progress import NO_POSITION, RecordColumns

LEAST_RECORDS = 32
"""Fewer records are counted faster one by one."""


def steady_spans(records: RecordColumns) -> list[tuple[int, int]]:
    """Spans of records that certainly end steady steps with samples: first index, and the one after the last.

    Each of them has the workers of the record before it, is not earlier, loses no samples, and both tell their position
    or neither does. The step of the first record begins before the batch, so it is in no span.

    Args:
        records: Successive records of one reporter.

    Returns:
        The spans in order; those of less than LEAST_RECORDS are left out.
    """
    if len(records) <= LEAST_RECORDS:
        return []
    seconds, workers = np.asarray(records.unix_seconds, float), np.asarray(records.workers, np.int64)
    samples, positions = np.asarray(records.samples, np.int64), np.asarray(records.positions, np.int64)
    told, begins = positions != NO_POSITION, np.maximum(0, positions - samples)
    steady = (workers[1:] == workers[:-1]) & (seconds[1:] >= seconds[:-1]) & (told[1:] == told[:-1])
    # A record without samples leaves its time to the next one, which is not steady either.
    steady &= (samples[1:] > 0) & (samples[:-1] > 0)
    steady &= ~told[1:] | (positions[:-1] <= begins[1:])
    edges = np.flatnonzero(np.diff(steady, prepend=False, append=False)) + 1
    spans = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(begin, end) for begin, end in spans if end - begin >= LEAST_RECORDS]


def step_seconds(unix_seconds: Sequence[float], before: float) -> list[float]:
    """Durations of steps in seconds, from the times at which they ended.

    Args:
        unix_seconds: When they ended, in seconds since the epoch; at least one.
        before: When the step before the first one ended.
    """
    times: list[float] = np.diff(np.asarray(unix_seconds, float), prepend=before).tolist()
    return times
