"""A seal at the end of a file, by which a torn or altered one is known. Standard library only.

The seal is a line of fixed length with the SHA-256 of all that comes before it. `torch.load` looks for the end of its
archive from the back and is not disturbed by it, so that a sealed checkpoint stays an ordinary `.pt` file.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_MARK = b"\nmalletrain-sha256:"
_SIZE = len(_MARK) + 64 + 1
_CHUNK = 1 << 20


class CorruptFileError(ValueError):
    """A file is not what was written."""


class SealedWriter:
    """A binary stream that goes straight to a file descriptor and ends with a seal.

    There is no buffer and so no lock of one: a process forked from another thread in mid-write has nothing to wait for.

    Attributes:
        error: Why a write has failed; those who write through it may make another error of it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data`.

        Raises:
            OSError: the disk is full, or broken.
        """
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._write(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""

    def seal(self) -> None:
        """End the file.

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


def verify(path: Path) -> bool:
    """Whether a file has a seal; one that has must fit it.

    Raises:
        CorruptFileError: the file is empty, or not what was sealed.
        OSError: the file can't be read.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size == 0:
            raise CorruptFileError(f"{path.name} is empty")
        if size < _SIZE:
            return False
        stream.seek(size - _SIZE)
        seal = stream.read(_SIZE)
        if not seal.startswith(_MARK):
            return False
        stream.seek(0)
        digest = hashlib.sha256()
        left = size - _SIZE
        while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    if digest.hexdigest().encode() + b"\n" != seal[len(_MARK) :]:
        raise CorruptFileError(f"{path.name} does not fit its seal")
    return True
