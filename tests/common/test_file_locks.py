"""Whether a lock is seen that another holds, and nothing is locked by looking."""

from __future__ import annotations

import fcntl
from pathlib import Path

from malletrain.common.file_locks import is_locked


def test_a_lock_is_seen_as_long_as_it_is_held(tmp_path: Path) -> None:
    path, other = tmp_path / "lock", tmp_path / "other"
    other.touch()
    assert not is_locked(path)
    with path.open("w") as file:
        assert not is_locked(path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_locked(path)
        assert not is_locked(other)
    assert not is_locked(path)


def test_only_an_flock_on_this_very_file_counts(tmp_path: Path) -> None:
    path, locks = tmp_path / "lock", tmp_path / "locks"
    path.touch()
    inode = path.stat().st_ino
    locks.write_text(
        f"1: POSIX  ADVISORY  WRITE 7 00:2f:{inode} 0 EOF\n2: FLOCK  ADVISORY  WRITE 7 00:2f:{inode}1 0 EOF\n"
    )
    assert not is_locked(path, locks)
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 7 00:2f:{inode} 0 EOF\n")
    assert is_locked(path, locks)
    assert not is_locked(path, tmp_path / "absent")
