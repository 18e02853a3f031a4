"""A worker's process, and sweeping a node of everything that is ours."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from malletrain.supervisor.membership import Slot
from malletrain.supervisor.worker_command import worker_command

NODE = "MALLETRAIN_NODE"
"""Variable that names a worker's node."""
JOB_FOLDER = "MALLETRAIN_JOB_DIR"
"""Variable that names the job's folder."""
BACKEND = "MALLETRAIN_BACKEND"
"""Variable that names the launcher backend."""
SUPERVISOR = "MALLETRAIN_SUPERVISOR"
"""Variable that names the supervisor that started a worker: its pid and start time."""

_STARTED = b"s"
_WARM = b"w"


class WorkerProcess:
    """One worker: started warm, then told to go.

    Attributes:
        slot: Its place.
        here: Its process is one of this machine.
        started: Whether the job's own code runs, as of the last `is_warm`.
        going: Whether it has been told to go.
        killed: Whether it was the supervisor that killed it.
        hung: Whether that was because it hung.
        said: What it has said of itself so far.
    """

    def __init__(
        self,
        slot: Slot,
        command: Iterable[str],
        folder: str,
        environment: Mapping[str, str],
        log: Path,
        *,
        warm: bool = True,
    ) -> None:
        """Start the process in a session of its own, its output appended to `log`.

        Raises:
            OSError: the interpreter or the folder is missing.
        """
        self.slot = slot
        self.here = True
        self.started = False
        self.going = False
        self.killed = False
        self.hung = False
        self.said = b""
        control_read, self._control = os.pipe()
        self._status, status_write = os.pipe()
        os.set_blocking(self._status, False)
        pipes = (control_read, status_write)
        arguments = worker_command(list(command), sys.executable, os.getpid(), pipes, warm=warm)
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    arguments,
                    cwd=folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=pipes,
                    start_new_session=True,
                )
        except OSError:
            self.close()
            raise
        finally:
            os.close(control_read)
            os.close(status_write)

    @property
    def pid(self) -> int:
        """Process id, that of its session and group, too."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def is_stopped(self) -> bool:
        """Whether it has been stopped by a signal, such as SIGSTOP; one that a debugger holds has not."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def is_warm(self) -> bool:
        """Whether the process waits for its start; notes whether the job's own code runs already."""
        with contextlib.suppress(BlockingIOError):
            self.said += os.read(self._status, 64)
        self.started = _STARTED in self.said
        return _WARM in self.said

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the trainer start with these variables on top of its environment."""
        self.going = True
        with contextlib.suppress(BrokenPipeError):  # it has just died; its end will be noticed
            os.write(self._control, (json.dumps(dict(environment)) + "\n").encode())

    def terminate(self) -> None:
        """Ask the trainer to commit, save and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its group."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the pipes."""
        for descriptor in (self._control, self._status):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def sweep(job_id: str, hosts: Iterable[str] | None = None, marks: Mapping[str, str] | None = None) -> list[int]:
    """Kill every process whose environment marks it as a worker's of this job, on these hosts or on all.

    Finds what has left its group: data loaders, sidecars.

    Args:
        job_id: The job.
        hosts: Nodes to look at; None: all.
        marks: More variables that a process must have.

    Returns:
        The process ids that were killed.
    """
    wanted = {"MALLETRAIN_JOB_ID": job_id, **(marks or {})}
    nodes = None if hosts is None else set(hosts)
    killed = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            found = _environment(entry)
            node = found.get(NODE)
            if node is not None and (nodes is None or node in nodes) and wanted.items() <= found.items():
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked, or is another user's
    return killed


def _environment(entry: Path) -> dict[str, str]:
    pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
