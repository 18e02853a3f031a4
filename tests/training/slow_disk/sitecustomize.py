"""A disk that is slow, for every Python that has this folder in PYTHONPATH: checkpoints take a while to reach it.

How many seconds each file takes stands in a file, so that the disk can become slower, or faster, meanwhile. What is
written and when it counts is as on any disk: only `fsync` of a file takes longer.
"""

import os
import stat
import time
from pathlib import Path
from typing import BinaryIO

_FOLDER = "/checkpoints/"
_fsync = os.fsync


def _slow_fsync(file: int | BinaryIO) -> None:
    _fsync(file)
    descriptor = file if isinstance(file, int) else file.fileno()
    path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    if _FOLDER in path and stat.S_ISREG(os.fstat(descriptor).st_mode):
        before = time.monotonic()
        while time.monotonic() - before < float(Path(os.environ["SLOW_DISK"]).read_text()):
            time.sleep(0.02)


if "SLOW_DISK" in os.environ:
    os.fsync = _slow_fsync  # type: ignore[assignment]  # of a file, too
