"""Programs whose start does not return: whoever executes one is held by the kernel."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)  # so the kernel tells of somebody who wants the file
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_program(path: Path) -> Iterator[Path]:
    """A program that can't be executed while the block runs, for 45 seconds at most.

    Another process has a lease on the file; the kernel lets whoever opens it wait until that is given back. So it is as
    with a file system that does not answer.
    """
    path.write_text("#!/bin/sh\necho started\n")
    path.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"held\n"
            yield path
        finally:
            holder.send_signal(signal.SIGKILL)
