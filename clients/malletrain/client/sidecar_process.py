"""Starts the sidecar process, and starts another one if it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from malletrain.client.job_context import JobContext
from malletrain.client.ring import Ring
from malletrain.client.warn_once import WarnOnce
from malletrain.common.environment import PYTHON
from malletrain.common.job_folder import LOGS_FOLDER, SIDECAR_LOG, TOKEN_FILE, undelivered_mark

RESTART_NS = 10_000_000_000
"""Shortest time between two starts of a sidecar, in nanoseconds."""

Process = subprocess.Popen[bytes]
StartSidecar = Callable[[JobContext, Ring, str], Process]


def start_sidecar(job: JobContext, ring: Ring, reporter_id: str) -> Process:
    """Start a sidecar for a ring, in the caller's session and in a process group of its own.

    When the trainer's process group is killed, the sidecar goes on, and delivers what the trainer has reported. It
    shares no stream with the trainer, so that it does not keep a pipe of the launcher open. Its messages go to
    `logs/sidecar.log` in the job's folder.

    Args:
        job: The job.
        ring: The ring to read.
        reporter_id: Identifier of the reporting process.

    Raises:
        OSError: the process can't be started.
        ValueError: the path of the interpreter is not known.
    """
    # -P: modules in the trainer's working directory must not hide those that the sidecar imports.
    command = [
        *(_interpreter(), "-P", "-m", "malletrain.client.sidecar", f"/dev/fd/{ring.fd}"),
        *("--monitor", job.monitor, "--job", job.id, "--reporter", reporter_id),
        *("--slots-per-node", str(job.slots_per_node), "--trainer", str(os.getpid())),
        *("--lineage", job.lineage),
        *("--token-file", str(job.directory / TOKEN_FILE)),
    ]
    _mark_undelivered(job.directory, reporter_id)
    log = job.directory / LOGS_FOLDER / SIDECAR_LOG
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        stderr = log.open("ab")
    except OSError:
        return _start(command, ring, subprocess.DEVNULL)
    with stderr:
        return _start(command, ring, stderr.fileno())


def _mark_undelivered(job_folder: Path, reporter_id: str) -> None:
    """Have the supervisor wait for the sidecar at the end, which may only just be starting then.

    Where that can't be said, it waits for a short time only. Marks of earlier reporters go: the newest one goes on from
    what they had.
    """
    mark = undelivered_mark(job_folder, reporter_id)
    with suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        for earlier in mark.parent.iterdir():
            earlier.unlink()
        mark.touch()


def _interpreter() -> str:
    """The interpreter that the supervisor or agent runs with; the script's own may have no gRPC.

    Raises:
        ValueError: neither path is known.
    """
    told = os.environ.get(PYTHON, "")
    if os.access(told, os.X_OK):
        return told
    if not sys.executable:
        raise ValueError("sys.executable: expected the path of the Python interpreter, got nothing")
    return sys.executable


def _start(command: list[str], ring: Ring, stderr: int) -> Process:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(ring.fd,),
        process_group=0,
    )


class SidecarProcess:
    """Keeps one sidecar running for a ring."""

    def __init__(self, start: Callable[[], Process], warnings: WarnOnce) -> None:
        """Nothing is started before the first `keep_running`.

        Args:
            start: Starts a sidecar.
            warnings: Prints what goes wrong.
        """
        self._start = start
        self._warnings = warnings
        self._process: Process | None = None
        self._started_ns = 0

    @property
    def pid(self) -> int | None:
        """Process id of the sidecar; None if there is none."""
        return None if self._process is None else self._process.pid

    def keep_running(self, now_ns: int) -> None:
        """Start a sidecar if there is none, at most every 10 s.

        Args:
            now_ns: Nanoseconds since the epoch.
        """
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._process = None
            self._warnings.warn("sidecar ended", f"the sidecar ended with status {status}; it is started again")
        # If the clock has been set back, the next start is not delayed.
        if 0 <= now_ns - self._started_ns < RESTART_NS:
            return
        self._started_ns = now_ns
        try:
            self._process = self._start()
        except (OSError, ValueError, MemoryError, subprocess.SubprocessError) as error:
            self._warnings.warn("sidecar start", f"the sidecar can't be started, trying again every 10 s: {error}")
