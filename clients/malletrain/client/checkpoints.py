"""Checkpoints on disk: written atomically, the last two kept, corrupt ones skipped."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from malletrain.client.checksum import ChecksumWriter, CorruptFileError, verify_checksum
from malletrain.common.files import sync_directory

StateT = TypeVar("StateT")

_KEPT = 2
_NAME = re.compile(r"samples-(\d+)\.pt")
_UNFINISHED = re.compile(r"\.samples-\d+\.pt\..+")
_BROKEN_SUFFIX = ".broken"


class Checkpoints:
    """The checkpoints of one job in a folder, named by their sample counter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, samples: int, write: Callable[[ChecksumWriter], None]) -> int:
        """Write a checkpoint and remove all but the newest two; returns its size in bytes.

        Raises:
            OSError: the checkpoint can't be written. Earlier ones are unchanged.
        """
        return self.store(samples, self.fill(samples, write))

    def fill(self, samples: int, write: Callable[[ChecksumWriter], None]) -> UnfinishedCheckpoint:
        """Write the content of a checkpoint to a temporary file.

        Raises:
            OSError: the file can't be written. It is removed, as it is if `write` raises.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = UnfinishedCheckpoint(
            self._folder / f".{self._path(samples).name}.{os.uname().nodename}.{os.getpid()}"
        )
        writer = ChecksumWriter(unfinished.fd)
        try:
            write(writer)
            writer.write_checksum()
        except BaseException as error:
            unfinished.discard()
            if writer.error is not None and writer.error is not error:
                raise writer.error from error
            raise
        return unfinished

    def store(self, samples: int, unfinished: UnfinishedCheckpoint) -> int:
        """Bring a filled file to disk, then rename it: a kill at any moment leaves the earlier checkpoints intact.

        Returns:
            Its size in bytes.

        Raises:
            OSError: it can't be brought to disk. It is removed.
        """
        try:
            os.fsync(unfinished.fd)
            size = os.fstat(unfinished.fd).st_size
            unfinished.path.replace(self._path(samples))
        finally:
            unfinished.discard()
        sync_directory(self._folder)
        for old in self.newest_first()[_KEPT:]:
            old.unlink(missing_ok=True)
        self._clean_up()
        return size

    def load(self, read: Callable[[Path, bool], StateT], broken: tuple[type[Exception], ...]) -> StateT | None:
        """Load the newest checkpoint that can be read; None if there is none.

        A corrupt one is renamed to `*.pt.broken`, so that it does not count among the two that are kept. Only the
        newest corrupt one is kept.

        Args:
            read: Reads a file. Its second argument tells whether the file has been verified by its checksum.
            broken: What `read` raises for a truncated or corrupt file. The checkpoint before it is tried then.
        """
        failures: tuple[type[Exception], ...] = (CorruptFileError, OSError, *broken)
        self._clean_up()
        for path in self.newest_first():
            try:
                return read(path, verify_checksum(path))
            except failures as error:
                print(
                    f"malletrain: checkpoint {path.name} can't be read ({error!r}), trying the one before",
                    file=sys.stderr,
                )
                if not isinstance(error, OSError):
                    self._rename_broken(path)
        return None

    def newest_first(self) -> list[Path]:
        """Checkpoint files, the highest sample counter first."""
        found = [(int(match[1]), path) for path in self._files() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found, reverse=True)]

    def newest_samples(self) -> int:
        """Sample counter of the newest checkpoint, whether it can be read or not; -1 if there is none."""
        names = (_NAME.fullmatch(path.name) for path in self.newest_first())
        return max((int(name[1]) for name in names if name), default=-1)

    def _path(self, samples: int) -> Path:
        return self._folder / f"samples-{samples:015d}.pt"

    def _files(self) -> list[Path]:
        return list(self._folder.iterdir()) if self._folder.is_dir() else []

    def _rename_broken(self, path: Path) -> None:
        for old in self._folder.glob(f"samples-*.pt{_BROKEN_SUFFIX}"):
            old.unlink(missing_ok=True)
        path.replace(path.with_name(path.name + _BROKEN_SUFFIX))

    def _clean_up(self) -> None:
        """Remove temporary files of writers that were killed."""
        for path in self._files():
            if _UNFINISHED.fullmatch(path.name) and _is_abandoned(path):
                path.unlink(missing_ok=True)


class UnfinishedCheckpoint:
    """A temporary file, locked while its writer lives.

    Attributes:
        path: Its path.
        fd: Its file descriptor; -1 after it has been closed.
    """

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: it can't be created.
        """
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        # Without locks in the file system, the file counts as abandoned.
        _lock(self.fd)

    def discard(self) -> None:
        """Close the file, and remove it unless it has been renamed."""
        if self.close():
            self.path.unlink(missing_ok=True)

    def close(self) -> bool:
        """Close the file descriptor; False if it was closed before. A forked child does only this."""
        # Reset first: after a fork between the two, the child could otherwise close another file with this number.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        return fd >= 0


def _is_abandoned(path: Path) -> bool:
    """Whether the writer of a temporary file has ended, on any node."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: it is not known whether the writer lives.
        return False
    return True
