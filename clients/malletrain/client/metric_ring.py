"""The part of the ring that carries what a script logs of its training, from the trainer to its sidecar.

As with records, the trainer only writes: where the reader falls behind, the oldest values are overwritten.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from malletrain.client.ring import METRIC_SIZE, METRIC_SLOTS, METRICS_TAKEN, Ring

MAX_NAME_BYTES = 64
"""Longest name of a metric, in UTF-8."""
NO_STEP = -1
"""The script gives no step."""

_ENTRY = struct.Struct("qqqd64s")
_CHECK = struct.Struct("q")


class RingMetric(NamedTuple):
    """One value that a script has logged.

    Attributes:
        number: Its number, from 1.
        unix_ns: When it was logged, in nanoseconds since the epoch.
        step: The script's own step; -1: it gives none.
        value: The value.
        name: Name of the metric, at most 64 bytes.
    """

    number: int
    unix_ns: int
    step: int
    value: float
    name: str


def put_metric(ring: Ring, number: int, unix_ns: int, step: int, value: float, name: bytes) -> None:
    """Write a value to the ring; see `RingMetric`. The newest 1024 are kept."""
    entry = _ENTRY.pack(number, unix_ns, step, value, name)
    place = _place(ring, number)
    ring.buffer[place : place + METRIC_SIZE] = entry + _CHECK.pack(zlib.crc32(entry))


class MetricReader:
    """Reads values from a ring, in order, each at most once. A ring of a trainer of an earlier version has none."""

    def __init__(self, ring: Ring) -> None:
        """Continue where an earlier sidecar ended."""
        self._ring = ring
        self._has_place = len(ring.buffer) >= _place(ring, METRIC_SLOTS - 1) + METRIC_SIZE
        self._next = ring.words[METRICS_TAKEN] + 1

    def read(self) -> list[RingMetric]:
        """The values that are new since the last call."""
        found: list[RingMetric] = []
        while self._has_place and len(found) < METRIC_SLOTS and (metric := self._copy(self._next)) is not None:
            if metric.number > self._next:
                self._next = metric.number - METRIC_SLOTS + 1
                continue
            found.append(metric)
            self._next += 1
        return found

    def _copy(self, number: int) -> RingMetric | None:
        """The value with a number, or a later one in its place; None: it is not there yet, or is being written."""
        place = _place(self._ring, number)
        copied = self._ring.buffer[place : place + METRIC_SIZE]
        entry = copied[: _ENTRY.size]
        there, unix_ns, step, value, name = _ENTRY.unpack(entry)
        if there < number or _CHECK.unpack_from(copied, _ENTRY.size)[0] != zlib.crc32(entry):
            return None
        return RingMetric(there, unix_ns, step, value, name.rstrip(b"\0").decode(errors="replace"))


def _place(ring: Ring, number: int) -> int:
    return ring.end_of_phases + (number % METRIC_SLOTS) * METRIC_SIZE
