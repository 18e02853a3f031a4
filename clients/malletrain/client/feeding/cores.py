"""Which processor cores a feed may use, and which processes its trainings are."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def usable_cores(process: Path = _PROC / "self", cgroups: Path = _CGROUPS) -> int:
    """Cores that this process may use, at least 1: those of its affinity, and no more than its cgroups' quotas.

    Args:
        process: Where the kernel says which cgroups it is in.
        cgroups: Where they are mounted.
    """
    return max(1, math.floor(min(float(len(os.sched_getaffinity(0))), _quota(process, cgroups))))


def _quota(process: Path, cgroups: Path) -> float:
    """Cores by the least quota of its cgroups and those above; infinite without any."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    least = math.inf
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups if not controllers else cgroups / controllers
        folder = root / path.lstrip("/")
        while True:
            least = min(least, _quota_of(folder))
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    return least


def _quota_of(folder: Path) -> float:
    """Cores by the quota of one cgroup, of version 2 or 1; infinite without one."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        spent = int((folder / "cpu.cfs_quota_us").read_text())
        return math.inf if spent < 0 else spent / int((folder / "cpu.cfs_period_us").read_text())
    return math.inf


def process_of(connection: socket.socket) -> int:
    """Process id of the other end of a Unix socket; 0: it is not known here, as in another container."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return max(0, int(_CREDENTIALS.unpack(raw)[0]))
