"""Keeps backups and what deletes rows of several services apart."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK_FILE = "backup.lock"


@contextmanager
def during_backup(state_dir: Path) -> Iterator[None]:
    """Nothing is deleted while the context lasts. It begins when nothing is being deleted any more.

    Raises:
        OSError: the state folder can't be written.
    """
    with _hold_lock(state_dir, fcntl.LOCK_SH):
        yield


@contextmanager
def between_backups(state_dir: Path) -> Iterator[None]:
    """No backup begins while the context lasts.

    Raises:
        BlockingIOError: a backup is being made.
        OSError: the state folder can't be written.
    """
    with _hold_lock(state_dir, fcntl.LOCK_EX | fcntl.LOCK_NB):
        yield


@contextmanager
def _hold_lock(state_dir: Path, kind: int) -> Iterator[None]:
    if not state_dir.is_dir():
        yield
        return
    descriptor = os.open(state_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:  # a backup that root makes must not keep the services' account out
            owner = state_dir.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)
