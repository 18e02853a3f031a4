"""The folder of one account's feeds, which nobody else can enter; it lies on this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.files import make_private_folder

_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def default_folder(environ: Mapping[str, str]) -> Path:
    """MALLETRAIN_FEED_FOLDER, or a folder of this account in /tmp.

    In the variable, {node} stands for the worker's node: so nodes that are one machine have a feed each.
    Not TMPDIR: a batch scheduler may set another one for each job, and its path may lie on a shared file system.
    """
    node = environ.get(env.NODE, "").partition("#")[0]
    named = environ.get(env.FEED_FOLDER, "").replace("{node}", node)
    return Path(named or f"/tmp/malletrain-feeds-{os.geteuid()}")


class PrivateFolder:
    """A folder that has been opened, and found to be closed to others."""

    def __init__(self, path: Path) -> None:
        """Make it if there is none, and open it.

        Raises:
            OSError: it can't be opened; PermissionError: others could enter it.
        """
        self.path = path
        with contextlib.suppress(PermissionError, FileExistsError):  # what is wrong is found below
            make_private_folder(path)
        self._descriptor = os.open(path, _OPEN)
        status = os.fstat(self._descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            os.close(self._descriptor)
            raise PermissionError(errno.EACCES, "expected a folder that only this account can enter", str(path))

    def inside(self, name: str) -> str:
        """Path of a file in this very folder, whatever has become of its name; short enough for a socket."""
        return f"/proc/self/fd/{self._descriptor}/{name}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether this process is the only one here now: the folder is locked, and others are not waited for."""
        descriptor = os.open(self.inside("."), _OPEN)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def connect(self, name: str) -> socket.socket | None:
        """Connect to a socket in the folder; None if nobody listens there.

        Raises:
            PermissionError: another account listens.
            OSError: it can't be connected to, e.g. because many wait to be.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(self.inside(name))
            check_peer(connection)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def listen(self, name: str) -> socket.socket:
        """Listen on a new socket in the folder. One of this name that nobody listens on any more is replaced.

        Raises:
            OSError: it can't be made.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.inside(name))  # noqa: PTH108 - the path of a descriptor
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(self.inside(name))
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def file_id(self, name: str) -> tuple[int, int] | None:
        """Device and inode of a file in the folder; None where there is none."""
        try:
            status = os.lstat(self.inside(name))
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def remove(self, name: str) -> None:
        """Remove a socket."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.inside(name))  # noqa: PTH108 - the path of a descriptor

    def close(self) -> None:
        """Close the folder."""
        os.close(self._descriptor)


def check_peer(connection: socket.socket) -> None:
    """Check that the other end of a Unix socket is of this account.

    Raises:
        PermissionError: it is another's.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user_id, _ = _CREDENTIALS.unpack(raw)
    if user_id != os.geteuid():
        raise PermissionError(errno.EACCES, f"expected a process of account {os.geteuid()}, got one of {user_id}")
