"""Files that are written completely or not at all, and folders that only their owner can enter."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_PRIVATE = 0o700
_PASSED_BY_ALL = 0o711
# Opening a pipe must not wait for its other end.
_NO_WAITING = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
"""What file systems answer that can't sync a directory, such as some network file systems."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk, or of a full quota."""
_FULL_PAUSE_SECONDS = 0.2


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no room for users any more, for bytes or for another file.

    Raises:
        OSError: there is no such folder.
    """
    usage = os.statvfs(folder)
    return usage.f_bavail == 0 or (usage.f_files > 0 and usage.f_favail == 0)  # some have no limit of files


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter; one of ours that others could enter is closed to them.

    Raises:
        OSError: it can't be made.
    """
    path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & ~_PRIVATE:
        path.chmod(_PRIVATE)


def make_state_folder(path: Path) -> None:
    """Make the services' state folder. Others may pass through it, to the CA's certificate; all else in it is closed.

    One of ours that nobody else could enter, as earlier versions made it, is opened as far.

    Raises:
        OSError: it can't be made.
    """
    path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == _PRIVATE:
        path.chmod(_PASSED_BY_ALL)


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading that somebody else may have placed there. Neither it nor its folder may be a link.

    A pipe or device is not waited for. A link in /proc could lead past closed folders, to whatever this process has.

    Raises:
        OSError: it can't be read, or is no plain file.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | _NO_WAITING, dir_fd=folder)
    finally:
        os.close(folder)
    file = os.fdopen(descriptor, "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a plain file", str(path))


def open_log(path: Path) -> BinaryIO:
    """Open a file for adding to its end; one that only its owner can read is made if there is none.

    A pipe that nobody reads is not waited for.

    Raises:
        OSError: it can't be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | _NO_WAITING
    descriptor = os.open(path, flags, 0o600)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab")


def write_atomically(path: Path, text: str, *, mode: int = 0o666, exact: bool = False, sync: bool = True) -> None:
    """Replace a file in one step: readers, also after a kill, see either the old or the new content.

    The content goes to a new file with a random name in the same directory, which then takes the name `path`. If
    `path` is a symbolic link, the link itself is replaced.

    Args:
        path: The file.
        text: Its new content, written as UTF-8.
        mode: Its permissions, less the process's umask.
        exact: Whether the permissions are `mode` whatever the umask is.
        sync: Whether file and directory are brought to disk before this returns, so that the file also survives a
            power failure.

    Raises:
        OSError: the file can't be written. The old content remains and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, _CREATE, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
            if exact:
                os.fchmod(descriptor, mode)
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


def write_once_there_is_room(
    path: Path, text: str, seconds: float, pause: Callable[[float], object] = time.sleep
) -> None:
    """Replace a file as `write_atomically` does; while the disk is full, try again.

    Args:
        path: The file.
        text: Its new content, written as UTF-8.
        seconds: How long to try.
        pause: Waits for so many seconds.

    Raises:
        OSError: the file can't be written, or the disk stays full.
    """
    for _ in range(int(seconds / _FULL_PAUSE_SECONDS)):
        try:
            return write_atomically(path, text)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            pause(_FULL_PAUSE_SECONDS)
    return write_atomically(path, text)


def sync_directory(directory: Path) -> None:
    """Bring the names of a directory's files to disk; nothing happens on file systems that can't.

    Raises:
        OSError: the directory can't be opened or synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)
