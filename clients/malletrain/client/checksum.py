"""A checksum at the end of a file, by which a truncated or altered one is detected. Standard library only.

The checksum is a line of fixed length with the SHA-256 of everything before it. `torch.load` searches for the end of
its archive from the back and ignores the line, so that the file remains an ordinary `.pt` file.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from pathlib import Path
from typing import BinaryIO

_MARK = b"\nmalletrain-sha256:"
_SIZE = len(_MARK) + 64 + 1
_CHUNK = 4 << 20
"""Bytes that are read and hashed, or written, at once without the interpreter's lock: few enough for a cache."""

_LARGE = 1 << 20
"""Less is hashed in the same thread: starting another one would take as long."""


class CorruptFileError(ValueError):
    """A file does not have the content that was written."""


class ChecksumWriter:
    """A binary stream that writes directly to a file descriptor and ends with a checksum.

    Large data is hashed in a thread while it is written. `write` returns when both are done: the data may be gone then.
    Nothing is buffered, and no lock is held between writes.

    Attributes:
        error: The error of the last failed write. A library that writes through this stream may raise another one.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data`; returns its length in bytes.

        Raises:
            OSError: the data can't be written, e.g. because the disk is full.
        """
        view = memoryview(data).cast("B")
        hashing = _hash_in_thread(self._digest, view) if len(view) >= _LARGE else None
        if hashing is None:
            self._digest.update(view)
        try:
            self._write(view)
        finally:
            if hashing is not None:
                hashing.join()
        return len(view)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def write_checksum(self) -> None:
        """End the file with its checksum.

        Raises:
            OSError: as `write`.
        """
        self._write(memoryview(_MARK + self._digest.hexdigest().encode() + b"\n"))

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                view = view[os.write(self._fd, view[:_CHUNK]) :]
            except OSError as error:
                self.error = error
                raise


def _hash_in_thread(digest: hashlib._Hash, view: memoryview) -> threading.Thread | None:
    """Add data to a digest in a thread; None where none can be started, as while the interpreter ends."""
    # Without the interpreter's lock, all at once: the digest has its own.
    thread = threading.Thread(target=digest.update, args=(view,), name="malletrain-checksum", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def has_checksum(path: Path) -> bool:
    """Whether a file ends with a checksum.

    Raises:
        CorruptFileError: the file is empty.
        OSError: the file can't be read.
    """
    with path.open("rb") as stream:
        return bool(_end_of(path, stream)[1])


def verify_checksum(path: Path) -> bool:
    """Verify a file; returns whether it has a checksum.

    Raises:
        CorruptFileError: the file is empty, or its checksum is wrong.
        OSError: the file can't be read.
    """
    with path.open("rb", buffering=0) as stream:
        left, expected = _end_of(path, stream)
        if not expected:
            return False
        stream.seek(0)
        digest = hashlib.sha256()
        chunk = memoryview(bytearray(min(_CHUNK, left)))
        while left > 0 and (count := stream.readinto(chunk[: min(len(chunk), left)])):
            digest.update(chunk[:count])
            left -= count
    if digest.hexdigest().encode() + b"\n" != expected:
        raise CorruptFileError(f"{path.name} does not fit its checksum")
    return True


def _end_of(path: Path, stream: BinaryIO | io.FileIO) -> tuple[int, bytes]:
    """Length of what a checksum is of, and the checksum; empty if there is none."""
    size = stream.seek(0, os.SEEK_END)
    if size == 0:
        raise CorruptFileError(f"{path.name} is empty")
    if size < _SIZE:
        return size, b""
    stream.seek(size - _SIZE)
    line = stream.read(_SIZE) or b""
    return (size - _SIZE, line[len(_MARK) :]) if line.startswith(_MARK) else (size, b"")
