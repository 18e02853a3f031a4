"""Whether a process of this machine holds a lock on a file, without taking one."""

from __future__ import annotations

from pathlib import Path

_LOCKS = Path("/proc/locks")


def is_locked(path: Path, locks: Path = _LOCKS) -> bool:
    """Whether some process has an flock(2) on a file; not known counts as no.

    To try the lock would do harm: whoever wants it at that moment would be told that another has it.

    Args:
        path: The file.
        locks: What Linux says of all locks (proc(5)): in each line its kind, and `MAJOR:MINOR:INODE` of the file.
    """
    try:
        inode = path.stat().st_ino
        lines = locks.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any("FLOCK" in line.split() and f":{inode} " in line for line in lines)
