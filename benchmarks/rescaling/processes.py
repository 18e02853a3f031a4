"""Finding and ending every process of a run, whatever group or session it is in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

MARK = "RESCALE_FOLDER"
"""Variable that every process of a run has: the run's folder."""
_SWEEP_SECONDS = 10.0


def marked(folder: Path) -> list[psutil.Process]:
    """Living processes of a run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sweep(folder: Path) -> None:
    """Kill every process of a run, until none is left.

    Raises:
        RuntimeError: some are still there after ten seconds.
    """
    deadline = time.monotonic() + _SWEEP_SECONDS
    while left := marked(folder):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.2)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{folder}: processes that can't be killed: {[process.pid for process in left]}")


@contextmanager
def started(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a session of its own, its output in `launcher.log`; in the end, end it and all its processes."""
    with (folder / "launcher.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment, MARK: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sweep(folder)


def loopback() -> str:
    """Name of the interface that has 127.0.0.1.

    Raises:
        RuntimeError: there is none.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    raise RuntimeError("no network interface has the address 127.0.0.1")


def interrupt_once() -> None:
    """Have the first SIGINT or SIGTERM end the run, and no other disturb the clearing up."""

    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
