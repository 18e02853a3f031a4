"""Checkpoints on disk: written atomically where there is room, the newest kept, corrupt ones skipped."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from malletrain.client.checksum import ChecksumWriter, CorruptFileError, has_checksum, verify_checksum
from malletrain.client.disk_room import DiskRoom, size_of
from malletrain.client.warn_once import in_words
from malletrain.common.files import sync_directory

_SAVES = 8
_ASSUMED_BYTES_PER_SECOND = 100e6


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """Which checkpoints are kept. The newest complete one always is.

    Attributes:
        count: Most checkpoints, at least 1.
        max_bytes: Most bytes of all together; None: no limit.
    """

    count: int = 2
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the figures, under the names that trainings give them.

        Raises:
            ValueError: one is out of its range.
        """
        if not _is_at_least_one(self.count):
            raise ValueError(f"checkpoints_kept: expected a whole number, at least 1, got {self.count!r}")
        if self.max_bytes is not None and not _is_at_least_one(self.max_bytes):
            raise ValueError(
                f"max_checkpoint_bytes: expected a whole number of bytes, at least 1, or None, got {self.max_bytes!r}"
            )

    def count_kept(self, sizes: Iterable[int]) -> int:
        """How many of the newest checkpoints are kept.

        Args:
            sizes: Their sizes in bytes, the newest first.
        """
        kept = total = 0
        for size in sizes:
            total += size
            if kept and (kept >= self.count or (self.max_bytes is not None and total > self.max_bytes)):
                break
            kept += 1
        return kept


def _is_at_least_one(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class SaveRate:
    """How fast the last saves were: their bytes by their seconds. A slow one counts for as long as it took."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._saves: deque[tuple[int, float]] = deque(maxlen=_SAVES)

    def note(self, size: int, seconds: float) -> None:
        """Take over a save: its size in bytes, and how long it took until it was on disk."""
        if size > 0 and seconds > 0:
            self._saves.append((size, seconds))

    @property
    def bytes_per_second(self) -> float | None:
        """The rate; None before the first save."""
        seconds = sum(seconds for _, seconds in self._saves)
        return sum(size for size, _ in self._saves) / seconds if seconds else None

    def too_slow(self, size: int, seconds_left: float | None) -> str:
        """Why a save of a size in bytes can't be done in the time that is left; empty: it can, or it is not known."""
        expected = self.expected_seconds(size)
        if expected is None or seconds_left is None or expected <= seconds_left:
            return ""
        return (
            f"{in_words(size)} take about {expected:.1f} s ({in_words(size / expected)}/s),"
            f" and {max(0.0, seconds_left):.1f} s are left"
        )

    def assumed_seconds(self, size: int) -> float:
        """How long a save of a size in bytes takes; before the first save, on a busy file system that nodes share."""
        expected = self.expected_seconds(size)
        return size / _ASSUMED_BYTES_PER_SECOND if expected is None else expected

    def expected_seconds(self, size: int) -> float | None:
        """How long a save of a size in bytes takes; None before the first save."""
        rate = self.bytes_per_second
        return size / rate if rate else None


StateT = TypeVar("StateT")

_NAME = re.compile(r"samples-(\d+)\.pt")
_UNFINISHED = re.compile(r"\.samples-\d+\.pt\..+")
_BROKEN_SUFFIX = ".broken"


class Checkpoints:
    """The checkpoints of one job in a folder, named by their sample counter."""

    def __init__(
        self, folder: Path, retention: CheckpointRetention | None = None, room: DiskRoom | None = None
    ) -> None:
        """Touch nothing yet.

        Args:
            folder: Where they are. It need not exist.
            retention: Which ones are kept; None: the newest two.
            room: The free space there; None: that of the file system.
        """
        self._folder = folder
        self._retention = retention or CheckpointRetention()
        self._room = room or DiskRoom()

    def save(self, samples: int, write: Callable[[ChecksumWriter], None]) -> int:
        """Write a checkpoint and remove those that are not kept; returns its size in bytes.

        Raises:
            OSError: the checkpoint can't be written. Earlier ones are unchanged.
        """
        return self.store(samples, self.fill(samples, write))

    def fill(self, samples: int, write: Callable[[ChecksumWriter], None], needed: int = 0) -> UnfinishedCheckpoint:
        """Write the content of a checkpoint to a temporary file.

        Args:
            samples: Its sample counter.
            write: Writes the content.
            needed: Its size in bytes, as far as known. Checkpoints before the newest one are removed where it does not
                fit otherwise.

        Raises:
            OSError: the file can't be written, and is removed, as it is if `write` raises; or there is no room for it,
                and nothing is written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clean_up()
        self._room.make(self._folder, needed, self.newest_first()[1:])
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
        paths = self.newest_first()
        for old in paths[self._retention.count_kept(size_of(path) for path in paths) :]:
            old.unlink(missing_ok=True)
        self._clean_up()
        self._room.look(self._folder, size)
        return size

    def load(self, read: Callable[[Path, bool], StateT], broken: tuple[type[Exception], ...]) -> StateT | None:
        """Load the newest checkpoint that can be read; None if there is none.

        A corrupt one is renamed to `*.pt.broken`, so that it does not count among those that are kept. Only the newest
        corrupt one is kept.

        Args:
            read: Reads a file. Its second argument tells whether the file is verified by its checksum meanwhile.
            broken: What `read` raises for a truncated or corrupt file. The checkpoint before it is tried then.
        """
        failures: tuple[type[Exception], ...] = (CorruptFileError, OSError, *broken)
        self._clean_up()
        for path in self.newest_first():
            try:
                return _read_verified(path, read)
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
        by_samples = [(int(match[1]), path) for path in self._files() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(by_samples, reverse=True)]

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


def _read_verified(path: Path, read: Callable[[Path, bool], StateT]) -> StateT:
    """Read a file, and verify it in a thread meanwhile if it has a checksum: the disk is read once.

    Raises:
        CorruptFileError: it does not fit its checksum, whatever `read` has made of it.
    """
    if not has_checksum(path):
        return read(path, False)
    wrong: list[Exception] = []

    def verify() -> None:
        try:
            verify_checksum(path)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that reads
            wrong.append(error)

    verifier = threading.Thread(target=verify, name="malletrain-checksum", daemon=True)
    verifier.start()
    try:
        state = read(path, True)
    except Exception as error:
        verifier.join()
        if wrong:
            raise wrong[0] from error
        raise
    verifier.join()
    if wrong:
        raise wrong[0]
    return state


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
