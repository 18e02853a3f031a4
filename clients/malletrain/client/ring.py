"""The ring of records in shared memory between a trainer (the only writer) and its sidecar (the only reader).

The ring consists of 64-bit words in native byte order. The trainer only writes records; it never waits for the reader.
If the reader falls behind, the oldest records are overwritten.

Every record begins with its sequence number and ends with the sum of its fields. Its slot shows whether record n is
there, has been overwritten (a higher number), or has not been written yet (a lower number). A record that is being
written is never delivered:

- Where stores become visible in program order (x86), the reader compares the first word before and after copying. The
  writer changes that word first.
- Where they may be reordered (ARM), the sum of the copied fields is wrong. The record is read again later.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple, Protocol

CAPACITY = 8192
"""Records in a ring, a power of two: 8 s with batches of 1 ms."""

RECORD = struct.Struct("qqqqqq")
"""Sequence, nanoseconds since the epoch, samples, position, workers, sum of these. Native mode stores whole words."""

RECORD_SHIFT = 6
"""Records lie 64 bytes apart: one cache line each."""

# Indices of words in the header. Those that the sidecar writes have a cache line of their own.
MAGIC, SLOTS, CLOSED = 0, 1, 2
FEED_RECEIVED, FEED_PREPARED, FEED_NANOSECONDS, FEED_PROCESSES = 8, 9, 10, 11
SAVES, SAVE_FAILURES, SAVE_ERROR, CHECKPOINT_NANOSECONDS = 12, 13, 14, 15
"""Saves of checkpoints that were tried, how many have failed since one succeeded, and errno of the newest; 0: other.
Besides, how long saving the state and reading it again takes at a rescale; 0: not known, or it goes another way."""
FEED_RUNNING, FEED_RATES = 24, range(25, 32)
"""Processes of the feed, and what their numbers prepare: `rate_word`; 0: nothing. In a cache line of their own."""
FLOOR, DROPPED, COMMANDS, STOPS, METRICS_TAKEN = 16, 17, 18, 19, 20

COMMAND_OFFSET = 256
COMMAND_SLOTS = 64
COMMAND_SIZE = 128
RECORD_OFFSET = COMMAND_OFFSET + COMMAND_SLOTS * COMMAND_SIZE

PHASE_SLOTS = 64
PHASE = struct.Struct("qqq32sq")
"""A phase: number from 1, nanoseconds since the epoch of its begin and end (0: it lasts), name, sum of these."""

METRIC_SLOTS = 1024
METRIC_SIZE = 104
"""Of what a script has logged; see `metric_ring.py`."""

_MAGIC_WORD = 0x4D616C6C65743031
"""In ASCII `Mallet01`: a ring, and the version of its layout. Trainer and sidecar may be of different versions."""
_LAYOUT_BITS = 16


_RATE_BITS = 40
_PER_SECOND = 1000.0


def rate_word(processes: int, rate: float) -> int:
    """What a number of processes prepares, as a word.

    Args:
        processes: From 1 on; bounded to what has room.
        rate: Samples/s, at least 0; bounded likewise, to a thousandth.
    """
    return min(processes, 1 << 20) << _RATE_BITS | min(round(rate * _PER_SECOND), (1 << _RATE_BITS) - 1)


def rate_of(word: int) -> tuple[int, float]:
    """The number of processes, and samples/s, of a `rate_word`."""
    return word >> _RATE_BITS, (word & ((1 << _RATE_BITS) - 1)) / _PER_SECOND


class RingRecord(NamedTuple):
    """One global batch.

    Attributes:
        sequence: Sequence number, from 1.
        unix_ns: When the batch ended, in nanoseconds since the epoch.
        samples: Size of the global batch.
        position: The job's sample counter after it; -1 if the trainer does not tell.
        workers: Worker processes.
    """

    sequence: int
    unix_ns: int
    samples: int
    position: int
    workers: int


class RingPhase(NamedTuple):
    """A phase that the trainer has entered.

    Attributes:
        number: Number, from 1.
        begin_ns: When it was entered, in nanoseconds since the epoch.
        end_ns: When it was left; 0: it lasts.
        name: Its name, at most 32 bytes.
    """

    number: int
    begin_ns: int
    end_ns: int
    name: str


class Words(Protocol):
    """The ring as 64-bit words, read-only."""

    def __getitem__(self, index: int, /) -> int:
        """The word at an index."""


class Ring:
    """A mapped ring.

    Attributes:
        fd: Descriptor of its file.
        buffer: Its bytes.
        words: Its bytes as 64-bit words.
    """

    def __init__(self, fd: int) -> None:
        """Map a ring file. The ring owns the descriptor from now on.

        Raises:
            OSError: it can't be mapped.
            ValueError: it is empty.
        """
        self.fd = fd
        # Populated: no write of a record has to wait for a page fault.
        self.buffer = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self.words = memoryview(self.buffer).cast("q")

    @property
    def end_of_records(self) -> int:
        """Where the records end, in bytes; phases follow."""
        return RECORD_OFFSET + (self.words[SLOTS] << RECORD_SHIFT)

    @property
    def end_of_phases(self) -> int:
        """Where the phases end, in bytes; logged values follow."""
        return self.end_of_records + PHASE_SLOTS * PHASE.size

    def close(self) -> None:
        """Unmap it and close its file."""
        self.words.release()
        self.buffer.close()
        os.close(self.fd)


def create_ring(capacity: int = CAPACITY) -> Ring:
    """Create a ring in anonymous memory. It is freed when the last process that has it ends.

    Args:
        capacity: Number of records, a power of two.

    Raises:
        OSError: there is not enough memory.
        ValueError: the capacity is not a power of two of at least 4.
    """
    if capacity < 4 or capacity & (capacity - 1):
        raise ValueError(f"capacity: expected a power of two of at least 4, got {capacity}")
    fd = _anonymous_file()
    try:
        records, phases, metrics = capacity << RECORD_SHIFT, PHASE_SLOTS * PHASE.size, METRIC_SLOTS * METRIC_SIZE
        os.ftruncate(fd, RECORD_OFFSET + records + phases + metrics)
        ring = Ring(fd)
    except BaseException:
        os.close(fd)
        raise
    ring.words[SLOTS] = capacity
    ring.words[MAGIC] = _MAGIC_WORD
    return ring


def open_ring(path: str) -> Ring:
    """Open an existing ring, e.g. `/dev/fd/7`, or `/proc/PID/fd/7` of a trainer.

    Raises:
        OSError: it can't be opened or mapped.
        ValueError: the file is not a ring.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if os.fstat(fd).st_size < RECORD_OFFSET:
        os.close(fd)
        raise ValueError(f"{path}: expected a ring, got a file that is too short")
    ring = Ring(fd)
    if (word := ring.words[MAGIC]) != _MAGIC_WORD:
        ring.close()
        other_layout = word >> _LAYOUT_BITS == _MAGIC_WORD >> _LAYOUT_BITS
        raise ValueError(f"{path}: expected a ring, got {'one of another layout' if other_layout else 'another file'}")
    return ring


class RingReader:
    """Reads records from a ring, in order, each at most once."""

    def __init__(self, words: Words, after: int = 0) -> None:
        """Start after the record with sequence number `after`."""
        self._words = words
        self._slots = words[SLOTS]
        self._next = after + 1

    def read(self, limit: int = CAPACITY, final: bool = False) -> tuple[list[RingRecord], int]:
        """Read the next records, and count how many before or between them were overwritten.

        Args:
            limit: Most records to look at.
            final: Whether the writer has ended. A record that it left unfinished counts as lost if others follow it.
        """
        records: list[RingRecord] = []
        lost = 0
        for _ in range(limit):
            record = self._copy(self._next)
            if record is None and final and self._is_there(self._next + 1):
                lost += 1
                self._next += 1
            elif record is None or record.sequence < self._next:
                break
            elif record.sequence == self._next:
                records.append(record)
                self._next += 1
            else:
                oldest = record.sequence - self._slots + 1
                lost += oldest - self._next
                self._next = oldest
        return records, lost

    def _is_there(self, sequence: int) -> bool:
        record = self._copy(sequence)
        return record is not None and record.sequence == sequence

    def _copy(self, sequence: int) -> RingRecord | None:
        """Copy the slot of a record; None if it is being written."""
        at = (RECORD_OFFSET + ((sequence & (self._slots - 1)) << RECORD_SHIFT)) >> 3
        words = self._words
        fields = [words[at], words[at + 1], words[at + 2], words[at + 3], words[at + 4]]
        if sum(fields) != words[at + 5] or words[at] != fields[0]:
            return None
        return RingRecord(*fields)


def put_phase(ring: Ring, phase: RingPhase) -> None:
    """Write a phase that has begun, or one that was written before and has ended."""
    name = phase.name.encode()[:32]
    place = _phase_place(ring, phase.number)
    check = _phase_check(phase.number, phase.begin_ns, phase.end_ns, name)
    PHASE.pack_into(ring.buffer, place, phase.number, phase.begin_ns, phase.end_ns, name, check)


class PhaseReader:
    """Reads phases from a ring: each when it has begun, and when it has ended.

    Of very many between two calls the oldest are left out. A ring of a trainer of an earlier version has none.
    """

    def __init__(self, ring: Ring) -> None:
        """Start with the oldest one that there is."""
        self._ring = ring
        self._has_place = len(ring.buffer) >= _phase_place(ring, PHASE_SLOTS - 1) + PHASE.size
        self._next = 1

    def read(self) -> list[RingPhase]:
        """Phases that are new or have ended since the last call, in the order of their numbers."""
        phases: list[RingPhase] = []
        while self._has_place and (phase := self._copy(self._next)) is not None:
            if phase.number > self._next:
                self._next = phase.number - PHASE_SLOTS + 1
                continue
            phases.append(phase)
            if not phase.end_ns and self._copy(self._next + 1) is None:
                break  # it lasts, and is looked at again
            self._next += 1
        return phases

    def _copy(self, number: int) -> RingPhase | None:
        """The phase with a number, or a later one in its place; None: it is not there yet, or is being written."""
        there, begin, end, text, check = PHASE.unpack_from(self._ring.buffer, _phase_place(self._ring, number))
        name = text.rstrip(b"\0")
        if there < number or check != _phase_check(there, begin, end, name):
            return None
        return RingPhase(there, begin, end, name.decode(errors="replace"))


def _phase_place(ring: Ring, number: int) -> int:
    return ring.end_of_records + (number % PHASE_SLOTS) * PHASE.size


def _phase_check(number: int, begin_ns: int, end_ns: int, name: bytes) -> int:
    return number + begin_ns + end_ns + zlib.crc32(name)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("malletrain-ring")
    fd, path = tempfile.mkstemp(prefix="malletrain-ring-")
    Path(path).unlink()
    return fd


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
        metrics: list[RingMetric] = []
        while self._has_place and len(metrics) < METRIC_SLOTS and (metric := self._copy(self._next)) is not None:
            if metric.number > self._next:
                self._next = metric.number - METRIC_SLOTS + 1
                continue
            metrics.append(metric)
            self._next += 1
        return metrics

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
