"""Deletes folders that users have filled: any depth, any number of entries, and never more at a time than is good.

`shutil.rmtree` calls itself for each folder within a folder, and opens one more file for each. Here a folder's content
is moved up until nothing is nested any more, so that the depth costs nothing.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_ENTRIES = 200_000
_AT_ONCE = 1000


class TooManyEntriesError(OSError):
    """There is more in a folder than is deleted at a time; what was deleted is gone."""


def remove_folder(name: str, above: int, max_entries: int = MAX_ENTRIES) -> None:
    """Delete a folder with everything in it. Links are not followed.

    Args:
        name: Name of the folder.
        above: Descriptor of the folder that it is in.
        max_entries: How many files and folders are deleted at most.

    Raises:
        TooManyEntriesError: there are more; call it again for the rest.
        OSError: something can't be deleted.
    """
    top = os.open(name, _FOLDER, dir_fd=above)
    try:
        remaining = max_entries
        while entries := list(_some(top)):
            for entry, is_folder in entries:
                remaining -= _remove_entry(entry, is_folder, top, remaining)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _remove_entry(entry: str, is_folder: bool, top: int, limit: int) -> int:
    """Delete a file, or a folder whose own folders have been moved up; returns how many entries that took."""
    if limit <= 0:
        raise TooManyEntriesError(errno.EFBIG, "more files and folders than are deleted at a time")
    if not is_folder:
        os.unlink(entry, dir_fd=top)
        return 1
    descriptor = os.open(entry, _FOLDER, dir_fd=top)
    removed = 1
    try:
        while entries := list(_some(descriptor)):
            for inner, inner_is_folder in entries:
                if removed >= limit:
                    raise TooManyEntriesError(errno.EFBIG, "more files and folders than are deleted at a time")
                removed += 1
                if inner_is_folder:
                    os.rename(inner, secrets.token_hex(16), src_dir_fd=descriptor, dst_dir_fd=top)
                else:
                    os.unlink(inner, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(entry, dir_fd=top)
    return removed


def _some(folder: int) -> Iterator[tuple[str, bool]]:
    """Some entries of a folder, each with whether it is a folder itself."""
    with os.scandir(folder) as entries:
        for _, entry in zip(range(_AT_ONCE), entries, strict=False):
            yield entry.name, entry.is_dir(follow_symlinks=False)
