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


class WorkerProcess:
    """One worker: started warm, then told to go."""

    def __init__(self, slot: Slot, command: Iterable[str], folder: str, environment: Mapping[str, str], log: Path):
        """Start the process in a session of its own, its output appended to `log`.

        Raises:
            OSError: the interpreter or the folder is missing.
        """
        self.slot = slot
        self.going = False
        control_read, self._control = os.pipe()
        self._status, status_write = os.pipe()
        os.set_blocking(self._status, False)
        arguments = worker_command(list(command), sys.executable, os.getpid(), control_read, status_write)
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    arguments,
                    cwd=folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(control_read, status_write),
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

    def is_warm(self) -> bool:
        """Whether the process has said that it is warm since the last call."""
        try:
            return bool(os.read(self._status, 64))
        except BlockingIOError:
            return False

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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the pipes."""
        for descriptor in (self._control, self._status):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def sweep(job_id: str, hosts: Iterable[str] | None = None) -> list[int]:
    """Kill every process whose environment marks it as a worker's of this job, on these hosts or on all.

    Finds what has left its group: data loaders, sidecars. Returns the process ids that were killed.
    """
    wanted = None if hosts is None else set(hosts)
    killed = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            mark = _environment(entry)
            node = mark.get("MALLETRAIN_NODE")
            if mark.get("MALLETRAIN_JOB_ID") == job_id and node is not None and (wanted is None or node in wanted):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked, or is another user's
    return killed


def _environment(entry: Path) -> dict[str, str]:
    pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
