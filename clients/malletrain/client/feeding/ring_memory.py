"""The shared memory of a feed: anonymous, so that nothing is left of it; its trainings can only read it.

Before each sample stand four words: a mark, its number, its dataset index and its length. A reader compares them before
and after it copies. Where a sample has given way, the mark is gone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.messages import ReadyPlace

_HEAD = struct.Struct("=qqqq")
HEAD_BYTES = 64
"""Bytes before each sample."""
_MARK = 0x4D616C6C65466431
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_NOTHING = bytes(_HEAD.size)
MAX_RING_BYTES = 1 << 44


class FeedRingWriter:
    """The feed's side.

    Attributes:
        descriptor: To be sent to trainings; it can only be read.
    """

    def __init__(self, size: int) -> None:
        """Make the memory. It takes room as it is written.

        Raises:
            OSError: the kernel has none.
        """
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        written = os.memfd_create("malletrain-feed", flags)
        try:
            os.ftruncate(written, size)
            # A training that reads never meets the end of the memory, which would kill it.
            fcntl.fcntl(written, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
            self._memory = mmap.mmap(written, size)
            # Processes that the feed forks do not keep it: it is gone when its group is.
            self._memory.madvise(mmap.MADV_DONTFORK)
            self.descriptor = os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(written)

    def write(self, offset: int, number: int, index: int, content: bytes) -> None:
        """Put a sample with its head at an offset."""
        start = offset + HEAD_BYTES
        self._memory[start : start + len(content)] = content
        self._memory[offset : offset + _HEAD.size] = _HEAD.pack(_MARK, number, index, len(content))

    def read(self, offset: int, number: int, index: int, length: int) -> bytes | None:
        """The sample at an offset, for the feed of another node; None if it has given way."""
        if self._memory[offset : offset + _HEAD.size] != _HEAD.pack(_MARK, number, index, length):
            return None
        start = offset + HEAD_BYTES
        return self._memory[start : start + length]

    def close(self) -> None:
        """Give it up. Trainings that have mapped it keep it until they leave."""
        self._memory.close()
        os.close(self.descriptor)

    def erase(self, offset: int) -> None:
        """Make the sample at an offset unreadable."""
        self._memory[offset : offset + _HEAD.size] = _NOTHING


class FeedRingReader:
    """A training's side."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the memory. The descriptor is closed.

        Raises:
            FeedError: it is not the memory of a feed.
            OSError: it can't be mapped.
        """
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            if sealed & _SEALS != _SEALS or os.fstat(descriptor).st_size != size or not 0 < size <= MAX_RING_BYTES:
                raise FeedError(f"memory: expected {size} bytes that can't be taken away, got another file")
            self._memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)

    def copy(self, place: ReadyPlace) -> bytes | None:
        """Copy a sample; None if it has given way.

        Raises:
            FeedError: the place lies outside of the memory.
        """
        start, end = place.offset + HEAD_BYTES, place.offset + HEAD_BYTES + place.length
        if end > len(self._memory):
            raise FeedError(f"place: expected one within {len(self._memory)} bytes, got {place.offset} to {end}")
        head = _HEAD.pack(_MARK, place.number, place.dataset_index, place.length)
        if self._memory[place.offset : place.offset + _HEAD.size] != head:
            return None
        content = self._memory[start:end]
        return content if self._memory[place.offset : place.offset + _HEAD.size] == head else None

    def close(self) -> None:
        """Unmap it."""
        self._memory.close()
