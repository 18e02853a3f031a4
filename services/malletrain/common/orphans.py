"""What workers leave behind that no longer looks like theirs: agent or supervisor inherits it, and ends it at its end.

A process that a worker has started is found by its process group and by its environment. One that has changed both, as
daemons do, is found by its parents only. The kernel gives the orphans among the agent's descendants to the agent, which
has asked for them (PR_SET_CHILD_SUBREAPER), so they stay its descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Collection, Iterator

from malletrain.common.processes import ProcessId, process_ids, read_status

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.005
_QUIET_LOOKS = 3


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of all orphans among this process's descendants, or be it no longer.

    Raises:
        OSError: the kernel does not know how.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def reap_orphans(workers: Collection[int]) -> None:
    """Collect the orphans that have ended. Workers, and programs that the agent runs for itself, are left alone.

    Args:
        workers: Process ids of workers that have not been collected.
    """
    with contextlib.suppress(ChildProcessError):  # there are no children
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in workers or not _is_of_a_worker(ended.si_pid):
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def end_descendants(clock: Callable[[], float] = time.monotonic, kill_groups: Callable[[], None] = lambda: None) -> int:
    """Kill all that workers have started, and whatever that has started, until nothing is left or a second has passed.

    Args:
        clock: Monotonic time in seconds.
        kill_groups: Kills what is in cgroups of ours, programs that fork without a pause included. Called once, after
            the first look.

    Returns:
        How many processes were killed.
    """
    killed: set[ProcessId] = set()
    quiet, deadline, looks = 0, clock() + _PATIENCE_SECONDS, 0
    # One that forks and ends at once may be missed by a look; several in a row hardly.
    while quiet < _QUIET_LOOKS and clock() < deadline:
        descendants = list(_descendants())
        quiet = 0 if descendants else quiet + 1
        for process in descendants:
            process.kill()
        killed.update(descendants)
        if looks == 0:
            kill_groups()
        looks += 1
        reap_orphans(())
        if killed:
            time.sleep(_PAUSE_SECONDS)
    return len(killed)


def _descendants() -> Iterator[ProcessId]:
    """Live descendants of this process, except programs that it runs for itself."""
    children: dict[int, list[int]] = {}
    alive: dict[int, ProcessId] = {}
    for pid in process_ids():
        status = read_status(pid)
        if status is None:
            continue
        children.setdefault(status.parent, []).append(pid)
        if not status.ended:
            alive[pid] = ProcessId(pid, status.start_time)
    waiting = list(children.get(os.getpid(), ()))
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        if pid in alive and _is_of_a_worker(pid):
            yield alive[pid]


def _is_of_a_worker(pid: int) -> bool:
    """Whether a process is in another session than this process: workers begin their own, and none can come back."""
    try:
        return os.getsid(pid) != os.getsid(0)
    except ProcessLookupError:
        return False
