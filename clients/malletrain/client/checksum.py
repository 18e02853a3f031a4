"""A checksum at the end of a file, by which a truncated or altered one is detected. Standard library only.

The checksum is a line of fixed length with the SHA-256 of everything before it. `torch.load` searches for the end of
its archive from the back and ignores the line, so that the file remains an ordinary `.pt` file.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_MARK = b"\nmalletrain-sha256:"
_SIZE = len(_MARK) + 64 + 1
_CHUNK = 1 << 20


class CorruptFileError(ValueError):
    """A file does not have the content that was written."""


class ChecksumWriter:
    """A binary stream that writes directly to a file descriptor and ends with a checksum.

    It has no buffer and so no lock: a process that is forked by another thread during a write can't inherit a locked
    one.

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
        self._digest.update(view)
        self._write(view)
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
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                self.error = error
                raise


def verify_checksum(path: Path) -> bool:
    """Verify a file; returns whether it has a checksum.

    Raises:
        CorruptFileError: the file is empty, or its checksum is wrong.
        OSError: the file can't be read.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size == 0:
            raise CorruptFileError(f"{path.name} is empty")
        if size < _SIZE:
            return False
        stream.seek(size - _SIZE)
        line = stream.read(_SIZE)
        if not line.startswith(_MARK):
            return False
        stream.seek(0)
        digest = hashlib.sha256()
        left = size - _SIZE
        while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    if digest.hexdigest().encode() + b"\n" != line[len(_MARK) :]:
        raise CorruptFileError(f"{path.name} does not fit its checksum")
    return True
