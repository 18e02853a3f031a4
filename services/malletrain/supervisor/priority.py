"""Low priority for workers that share a machine with the services, which must release nodes in time."""

from __future__ import annotations

import os
from pathlib import Path

NICENESS = 10


def lower_priority(pid: int, proc: Path = Path("/proc")) -> bool:
    """Lower the priority of a process that leads a session, or is about to.

    Where the kernel shares the CPU among sessions first (sched_autogroup, see sched(7)), niceness counts only within a
    session, so that the session's own is set, too.

    Returns:
        Whether that is done, or can't be; False: try again later, the process does not lead its session yet.
    """
    try:
        if os.getsid(pid) != pid:
            return False
        os.setpriority(os.PRIO_PROCESS, pid, max(NICENESS, os.getpriority(os.PRIO_PROCESS, pid)))
        (proc / str(pid) / "autogroup").write_text(str(NICENESS))
    except BlockingIOError:  # the kernel takes ten of these a second
        return False
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return True
    return True
