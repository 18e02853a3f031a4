"""Checkpoints on disk: written whole or not at all, the last two kept, a broken one skipped."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from malletrain.client.sealing import CorruptFileError, SealedWriter, verify

StateT = TypeVar("StateT")

_KEPT = 2
_NAME = re.compile(r"samples-(\d+)\.pt")
_UNFINISHED = re.compile(r"\.samples-\d+\.pt\..+")
_ASIDE = ".broken"


class Checkpoints:
    """The checkpoints of one job in one folder, named by their sample counter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, samples: int, write: Callable[[SealedWriter], None]) -> int:
        """Write a checkpoint and forget all but the newest two; its size in bytes.

        Args:
            samples: The job's sample counter.
            write: Writes the content.

        Raises:
            OSError: the checkpoint can't be written; the earlier ones are as they were.
        """
        return self.store(samples, self.fill(samples, write))

    def fill(self, samples: int, write: Callable[[SealedWriter], None]) -> Unfinished:
        """Write the content of a checkpoint to a temporary file.

        Raises:
            OSError: the file can't be written. Nothing is left of it then, or if `write` raises.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = Unfinished(self._folder / f".{self._path(samples).name}.{os.uname().nodename}.{os.getpid()}")
        writer = SealedWriter(unfinished.fd)
        try:
            write(writer)
            writer.seal()
        except BaseException as error:
            unfinished.discard()
            if writer.error is not None and writer.error is not error:
                raise writer.error from error
            raise
        return unfinished

    def store(self, samples: int, unfinished: Unfinished) -> int:
        """Bring a filled file to disk and give it its name, so that a kill at any moment leaves earlier ones intact.

        Returns:
            Its size in bytes.

        Raises:
            OSError: it can't be brought to disk, and is gone.
        """
        try:
            os.fsync(unfinished.fd)
            size = os.fstat(unfinished.fd).st_size
            unfinished.path.replace(self._path(samples))
        finally:
            unfinished.discard()
        _sync_folder(self._folder)
        for old in self.newest_first()[_KEPT:]:
            old.unlink(missing_ok=True)
        self._clean_up()
        return size

    def load(self, read: Callable[[Path, bool], StateT], broken: tuple[type[Exception], ...]) -> StateT | None:
        """The newest checkpoint that fits its seal and can be read, or None.

        One that does not is put aside (`*.pt.broken`, the newest such is kept), lest it count among the two.

        Args:
            read: Reads a file; told whether it has a seal, which fits then.
            broken: What `read` raises for a torn or corrupt file; the one before is tried then.
        """
        failures: tuple[type[Exception], ...] = (CorruptFileError, OSError, *broken)
        self._clean_up()
        for path in self.newest_first():
            try:
                return read(path, verify(path))
            except failures as error:
                print(
                    f"malletrain: checkpoint {path.name} can't be read ({error!r}), trying the one before",
                    file=sys.stderr,
                )
                if not isinstance(error, OSError):
                    self._put_aside(path)
        return None

    def newest_first(self) -> list[Path]:
        """Checkpoint files, the highest sample counter first."""
        found = [(int(match[1]), path) for path in self._files() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found, reverse=True)]

    def _path(self, samples: int) -> Path:
        return self._folder / f"samples-{samples:015d}.pt"

    def _files(self) -> list[Path]:
        return list(self._folder.iterdir()) if self._folder.is_dir() else []

    def _put_aside(self, path: Path) -> None:
        for old in self._folder.glob(f"samples-*.pt{_ASIDE}"):
            old.unlink(missing_ok=True)
        path.replace(path.with_name(path.name + _ASIDE))

    def _clean_up(self) -> None:
        """Remove what killed writers have left."""
        for path in self._files():
            if _UNFINISHED.fullmatch(path.name) and _is_abandoned(path):
                path.unlink(missing_ok=True)


class Unfinished:
    """A temporary file, locked for as long as its writer lives.

    Attributes:
        path: Where it is.
        fd: Its file descriptor; -1 once it is discarded.
    """

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: it can't be created.
        """
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        # Where there are no locks, the file merely counts as abandoned.
        _lock(self.fd)

    def discard(self) -> None:
        """Close the file, and remove it unless it has been given another name."""
        if self.close():
            self.path.unlink(missing_ok=True)

    def close(self) -> bool:
        """Close the file descriptor; False if that was done before. A forked child does no more than this."""
        # Forgotten first: were it done the other way round, a fork in between could close another file of that number.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        return fd >= 0


def _is_abandoned(path: Path) -> bool:
    """Whether the writer of a temporary file is gone, on whatever node it was."""
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
        # A file system without locks: whether the writer lives can't be known.
        return False
    return True


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
