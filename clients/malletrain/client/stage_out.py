"""The program that copies a checkpoint from the memory of a node to its job's folder, after the workers have gone.

    python -P -s -m malletrain.client.stage_out DESCRIPTOR JOB_FOLDER SECONDS PARENT

A node's agent starts it as the job's user; see `malletrain.common.stage_out`. It ends with the agent, at SIGTERM or
when its time is over, and leaves nothing half-copied then; checkpoints before are never touched. Exit status 0: the
checkpoint is in its place. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from malletrain.client.checkpoints import CheckpointRetention, Checkpoints
from malletrain.client.part_files import part_path, parts_folder, store_part
from malletrain.client.warn_once import describe, in_words
from malletrain.common.files import open_log
from malletrain.common.job_folder import CHECKPOINTS_FOLDER, LOGS_FOLDER, STAGE_OUT_LOG
from malletrain.common.stage_out import StagedCheckpoint, is_awaited, read_staged, remove_mark

_PR_SET_PDEATHSIG = 1
_CHUNK = 4 << 20
_NICENESS = 19
"""The node belongs to others by now."""
_ALL = CheckpointRetention(count=sys.maxsize)
"""How many checkpoints the training keeps is not known here; it removes older ones itself, at its next save."""


class CopyStoppedError(Exception):
    """The copy has to end."""


def copy_out(descriptor: int, staged: StagedCheckpoint, job_folder: Path) -> None:
    """Copy a checkpoint, or a part of one, to the job's folder. It is there once it is complete.

    Args:
        descriptor: The memory that it is in.
        staged: What it is.
        job_folder: The job's folder.

    Raises:
        OSError: it can't be read or written, or nobody waits for it any more. Nothing is left of it, nor after an
            `CopyStoppedError`.
    """
    if not is_awaited(job_folder, staged):
        raise OSError("nobody waits for it any more")
    folder = job_folder / CHECKPOINTS_FOLDER
    if not staged.parts:
        # The checksum is made on the way.
        Checkpoints(folder, _ALL).save(staged.samples, lambda file: _copy(descriptor, staged.size, file.write))
        return
    path = part_path(parts_folder(folder, staged.samples), staged.token, staged.part, staged.parts)
    store_part(path, lambda file: _copy(descriptor, staged.size, file.write))


def _copy(descriptor: int, size: int, write: Callable[[bytes], object]) -> None:
    first = 0
    while first < size:
        chunk = os.pread(descriptor, min(_CHUNK, size - first), first)
        if not chunk:
            raise OSError(f"expected {size} bytes in memory, got {first}")
        write(chunk)
        first += len(chunk)


def _end_in_time(seconds: float) -> None:
    def stop(number: int, _frame: object) -> None:
        _ignore_signals()  # what is left to do is to remove what has been copied
        raise CopyStoppedError("the node is needed" if number == signal.SIGTERM else f"{seconds:g} s are over")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("stage_out: the agent has ended")


def main() -> int:
    """Copy, and remove the mark; the exit status."""
    descriptor, job_folder, seconds = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    _die_with(int(sys.argv[4]))
    os.nice(_NICENESS)
    staged = read_staged(descriptor)
    if staged is None:
        return 1
    began, name = time.monotonic(), f"checkpoint at {staged.samples} samples ({in_words(staged.size)})"
    try:
        _end_in_time(seconds)
        copy_out(descriptor, staged, job_folder)
        _ignore_signals()
    except (OSError, CopyStoppedError) as error:
        said, status = f"the {name} is not copied, the last one counts: {describe(error)}", 1
    else:
        said, status = f"{name} is copied, in {time.monotonic() - began:.1f} s", 0
    with contextlib.suppress(OSError):
        remove_mark(job_folder, staged)
    with contextlib.suppress(OSError), open_log(job_folder / LOGS_FOLDER / STAGE_OUT_LOG) as log:
        log.write(f"malletrain: {said}\n".encode())
    return status


if __name__ == "__main__":
    sys.exit(main())
