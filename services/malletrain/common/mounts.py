"""What is mounted where, as the kernel tells: a user's own file system (FUSE) may keep waiting who looks at it."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator
from pathlib import Path

_OWN_MOUNTS = Path("/proc/self/mountinfo")


def unescape(text: str) -> str:
    """A path as it is in mountinfo, where spaces and the like are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_points(mountinfo: str) -> Iterator[str]:
    """Folders at which file systems are mounted, from the text of /proc/PID/mountinfo."""
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if len(words) > 4:
            yield unescape(words[4])


class MountTable:
    """The mounts that this process sees. To ask it looks at no file system but /proc, so it never waits for one."""

    def __init__(self, file: Path = _OWN_MOUNTS) -> None:
        self._file = file
        self._descriptor: int | None = None
        self._poll = select.poll()
        self._points: frozenset[str] = frozenset()

    def has_any_of(self, *folders: Path) -> bool:
        """Whether a file system is mounted at one of these folders.

        Raises:
            OSError: the list can't be read.
        """
        self._refresh()
        return not self._points.isdisjoint(map(str, folders))

    def _refresh(self) -> None:
        """Read the list once, and again when the kernel says that it has changed."""
        if self._descriptor is None:
            self._descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            self._poll.register(self._descriptor, select.POLLPRI)
        elif not self._poll.poll(0):
            return
        text = self._file.read_text(encoding="utf-8", errors="surrogateescape")
        self._points = frozenset(mount_points(text))

    def close(self) -> None:
        """Close the list."""
        if self._descriptor is not None:
            self._poll.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
