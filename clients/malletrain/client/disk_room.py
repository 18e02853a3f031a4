"""Room for checkpoints in their file system: looked at before a save, so that none is begun that can't be finished."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from malletrain.client.warn_once import WarnOnce, in_words

_FEW = 3
_LITTLE_ROOM = "little room"


def free_bytes(folder: Path) -> int | None:
    """Bytes that this user can still write in a folder's file system.

    That is without what is reserved for root, and within the quota where the file system shows that in its free space,
    as XFS and ext4 do for a project's folder. A quota of a user or a group is not seen before a write fails.

    Returns:
        None where the file system does not tell, as some in user space.
    """
    try:
        file_system = os.statvfs(folder)
    except OSError:
        return None
    return file_system.f_bavail * file_system.f_frsize if file_system.f_blocks else None


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; 0 if it is not there any more."""
    try:
        if path.is_dir():
            return sum(size_of(inner) for inner in path.iterdir())
        return path.stat().st_size
    except OSError:
        return 0


def remove(path: Path) -> None:
    """Remove a file, or a folder with all its files, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class DiskRoom:
    """The free space where checkpoints are written."""

    def __init__(self, warnings: WarnOnce | None = None, free: Callable[[Path], int | None] = free_bytes) -> None:
        """Look at nothing yet.

        Args:
            warnings: Says when there is room for few further checkpoints.
            free: Returns the free bytes where a folder is; None: not known.
        """
        self._warnings = warnings or WarnOnce()
        self._free = free

    def make(self, folder: Path, needed: int, older: Sequence[Path]) -> None:
        """Make sure that there is room for a checkpoint, by removing older ones where that helps.

        Args:
            folder: Folder of the checkpoints, which exists.
            needed: Size of the next one in bytes.
            older: Complete checkpoints that can be removed, the newest first.

        Raises:
            OSError: there is not. With ENOSPC, as if the disk were full already; nothing more than `older` is removed,
                and nothing at all where that would not do.
        """
        free = self._free(folder)
        if free is None or free >= needed:
            return
        if free + sum(size_of(path) for path in older) >= needed:
            for path in reversed(older):
                remove(path)
                free = self._free(folder)
                if free is None or free >= needed:
                    return
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: a checkpoint needs {in_words(needed)}, {in_words(free)} are free",
            str(folder),
        )

    def look(self, folder: Path, size: int) -> None:
        """After a save of a size in bytes: say if fewer than three further ones fit, once until there is more room."""
        free = self._free(folder)
        if free is not None and size and free < _FEW * size:
            self._warnings.warn(
                _LITTLE_ROOM,
                f"{in_words(free)} are free in {folder}: room for {free / size:.1f} further checkpoints of"
                f" {in_words(size)}",
            )
        else:
            self._warnings.forget(_LITTLE_ROOM)
