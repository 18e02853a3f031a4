"""Starting the sidecar process, and starting it again if it dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from malletrain.client.complaints import Complaints
from malletrain.client.environment import JobContext
from malletrain.client.ring import Ring

RESTART_NS = 10_000_000_000
"""Shortest time between two starts of a sidecar, in nanoseconds."""

Process = subprocess.Popen[bytes]
StartSidecar = Callable[[JobContext, Ring, str], Process]


def start_sidecar(job: JobContext, ring: Ring, reporter_id: str) -> Process:
    """Start a sidecar for a ring, in the process group of the caller.

    It shares no stream with the trainer, so that it keeps no pipe of the launcher open: what it has to say goes to
    `logs/sidecar.log` in the job's folder.

    Raises:
        OSError: the process can't be started.
        ValueError: the interpreter is not known.
    """
    if not sys.executable:
        raise ValueError("sys.executable: expected the path of the Python interpreter, got nothing")
    # -P: the trainer's working directory must not shadow what the sidecar imports.
    command = [
        *(sys.executable, "-P", "-m", "malletrain.client.sidecar", f"/dev/fd/{ring.fd}"),
        *("--monitor", job.monitor, "--job", job.id, "--reporter", reporter_id),
        *("--slots-per-node", str(job.slots_per_node), "--trainer", str(os.getpid())),
    ]
    log = job.directory / "logs" / "sidecar.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        stderr = log.open("ab")
    except OSError:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(ring.fd,),
        )
    with stderr:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, pass_fds=(ring.fd,)
        )


class SidecarKeeper:
    """Keeps one sidecar running for a ring."""

    def __init__(self, start: Callable[[], Process], complaints: Complaints) -> None:
        self._start = start
        self._complaints = complaints
        self._process: Process | None = None
        self._started_ns = 0

    @property
    def pid(self) -> int | None:
        """The sidecar's process id; None while there is none."""
        return None if self._process is None else self._process.pid

    def keep(self, now_ns: int) -> None:
        """Start a sidecar if there is none, at most every 10 s.

        Args:
            now_ns: Nanoseconds since the epoch.
        """
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._process = None
            self._complaints.say("sidecar ended", f"the sidecar ended with status {status}; it is started again")
        # A clock that was set back must not hold up the next start.
        if 0 <= now_ns - self._started_ns < RESTART_NS:
            return
        self._started_ns = now_ns
        try:
            self._process = self._start()
        except (OSError, ValueError, MemoryError, subprocess.SubprocessError) as error:
            self._complaints.say("sidecar start", f"the sidecar can't be started, trying again every 10 s: {error}")
