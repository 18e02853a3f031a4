"""Whether a file is one that this account may believe: what it says is executed, or decides where secrets go.

Whoever can write a file, or a folder on the way to it, decides what is in it. So each entry of the way, links and what
they lead to included, has to belong to a trusted account, and nobody else may be able to write it. Only `root` and the
account itself are trusted. In a folder with the sticky bit, such as /tmp, others can make entries, but can't replace
those of somebody else: there the owner of the entry decides.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MAX_LINKS = 40
"""As many as the kernel follows."""
_ACCESS_LIST = "system.posix_acl_access"
_ROOT = 0


class UntrustedFileError(OSError):
    """Somebody else decides what is in a file, or could. The message says who, and which entry of the way it is."""


@dataclass(frozen=True)
class PathEntry:
    """One entry on the way to a file.

    Attributes:
        mode: Kind and permissions, as stat(2) has them.
        user_id: Number of its owner.
        group_writes: Whether its group may write it and has other members than the owner, as far as is known.
    """

    path: str
    mode: int
    user_id: int
    group_writes: bool = False


def distrust(entries: Iterable[PathEntry], trusted: frozenset[int]) -> str:
    """Why what is at the end of a way is not to be believed; empty if it is. Pure.

    Args:
        entries: Every entry of the way, the root folder included.
        trusted: Numbers of the accounts that may decide.
    """
    for entry in entries:
        if entry.user_id not in trusted:
            return f"{entry.path} belongs to user id {entry.user_id}"
        if stat.S_ISLNK(entry.mode):
            continue  # the permissions of a link mean nothing: its folder decides who may replace it
        if stat.S_ISDIR(entry.mode) and entry.mode & stat.S_ISVTX:
            continue
        if entry.mode & stat.S_IWOTH:
            return f"everybody can write {entry.path}"
        if entry.group_writes:
            return f"the group of {entry.path} can write it"
    return ""


def check_trusted(path: Path, trusted: frozenset[int] | None = None) -> None:
    """Refuse a file or folder that others could have written or replaced.

    Args:
        path: The file; relative to the working directory, if it is not absolute.
        trusted: Numbers of the accounts that may decide; None: root and the account of this process.

    Raises:
        UntrustedFileError: others decide what is there.
        OSError: there is no such file, or it can't be looked for.
    """
    believed = frozenset({_ROOT, os.geteuid()}) if trusted is None else trusted
    if reason := distrust(way_to(path), believed):
        raise UntrustedFileError(errno.EPERM, reason, str(path))


def reason_for_distrust(path: Path, trusted: frozenset[int] | None = None) -> str:
    """Why a file is not to be believed, as `check_trusted` says it; empty if it is, or if there is no such file."""
    try:
        check_trusted(path, trusted)
    except UntrustedFileError as error:
        return str(error.strerror)
    except OSError:
        return ""
    return ""


def way_to(path: Path, look: Callable[[str], os.stat_result] = os.lstat) -> Iterator[PathEntry]:
    """Every entry on the way to a file, from the root folder on: links, and what they lead to.

    Args:
        path: The file.
        look: Says what an entry is without following it.

    Raises:
        OSError: there is no such file, it can't be looked for, or links lead round and round.
    """
    # What ".." means depends on links before it, so one name is followed at a time.
    rest, here, links = _names(os.path.join(Path.cwd(), path)), "/", 0  # noqa: PTH118 - keeps ".."
    yield _entry(here, look(here))
    while rest:
        name = rest.pop(0)
        if name == "..":
            here = os.path.dirname(here)  # noqa: PTH120 - of a text without links
            continue
        status = look(joined := os.path.join(here, name))  # noqa: PTH118
        yield _entry(joined, status)
        if not stat.S_ISLNK(status.st_mode):
            here = joined
            continue
        if (links := links + 1) > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = os.readlink(joined)  # noqa: PTH115 - of a text
        here = "/" if target.startswith("/") else here
        rest = _names(target) + rest


def entry_at(path: Path) -> PathEntry | None:
    """The last entry of a way alone; None if there is none."""
    try:
        return _entry(str(path), path.lstat())
    except FileNotFoundError:
        return None


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _entry(path: str, status: os.stat_result) -> PathEntry:
    writes = bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(path, status.st_uid, status.st_gid)
    return PathEntry(path, status.st_mode, status.st_uid, writes)


def _is_private_group(path: str, user_id: int, group_id: int) -> bool:
    """Whether a group is the owner's own: many systems give each user one, and umask 002.

    Where a list of accounts is attached to a file, its permissions for the group are those of all who are listed.
    """
    if _has_access_list(path):
        return False
    try:
        user, group = pwd.getpwuid(user_id), grp.getgrgid(group_id)
    except KeyError:
        return False
    own = user.pw_gid == group_id and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}


def _has_access_list(path: str) -> bool:
    """Whether a list of accounts with their permissions (POSIX ACL) is attached to a file."""
    try:
        return bool(os.getxattr(path, _ACCESS_LIST, follow_symlinks=False))
    except OSError:
        return False
