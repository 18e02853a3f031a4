"""Stage-out: a checkpoint that is left in a node's memory, and copied to the job's folder once the workers have gone.

Where a save takes longer than a node stays, a worker writes the checkpoint to its memory for a handover
(`malletrain.common.handover_memory`), leaves a mark in the job's folder, and ends. The agent that holds the memory has
it copied by a process of the job's user (`malletrain.client.stage_out`), which removes the mark at its end. While there
is one, the job's supervisor begins no other generation: that would go on from an older checkpoint.

The memory has the bytes of the file, then a few numbers. Without these nothing counts, and from them alone follows the
name of the file: the memory is written by a user's program, and names no path.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.files import open_plain, write_atomically
from malletrain.common.job_folder import STAGE_OUT_FOLDER

MAX_SECONDS = 600.0
"""How long any agent may copy, whatever it is told."""
_MAGIC = b"malletr2"
_END = struct.Struct("<8sqqqq8s")
"""The magic number, bytes of the content, samples, number of the part, number of parts, token."""
_TOKEN = re.compile(r"[0-9a-f]{8}")
_MAX_NUMBER = 1 << 62
_MAX_PARTS = 1 << 20
_MAX_TERMS = 64


@dataclass(frozen=True)
class StageOutTerms:
    """What an agent offers.

    Attributes:
        seconds: How long copying may take once the workers have gone; above 0.
        max_bytes: Most bytes of all checkpoints of a user together that are copied from the node at a time.
    """

    seconds: float
    max_bytes: int

    def to_text(self) -> str:
        """As an environment variable."""
        return f"{self.seconds:g} {self.max_bytes}"

    def is_better(self, save_seconds: float, left: float | None) -> bool:
        """Whether a checkpoint had better be staged out than saved by the worker itself.

        Args:
            save_seconds: How long a save takes.
            left: How long the worker has, in seconds; None: as long as it takes.
        """
        return left is not None and left < save_seconds <= self.seconds


def terms_from_text(text: str) -> StageOutTerms | None:
    """What an agent offers; None if it offers nothing, as agents of earlier versions do."""
    seconds, _, size = text[:_MAX_TERMS].partition(" ")
    try:
        terms = StageOutTerms(min(float(seconds), MAX_SECONDS), int(size))
    except ValueError:
        return None
    return terms if terms.seconds > 0 and terms.max_bytes > 0 else None


@dataclass(frozen=True)
class StagedCheckpoint:
    """A checkpoint in memory, or one worker's part of one.

    Attributes:
        size: Bytes of its file.
        samples: The job's sample counter.
        part: Which part it is, from 0.
        parts: How many parts the checkpoint has; 0: it is whole.
        token: Tells parts of one generation from those of another one; eight digits, or empty for a whole checkpoint.
    """

    size: int
    samples: int
    part: int = 0
    parts: int = 0
    token: str = ""

    def ending(self) -> bytes:
        """What follows the file's bytes in memory."""
        return _END.pack(_MAGIC, self.size, self.samples, self.part, self.parts, self.token.encode("ascii"))

    @property
    def mark(self) -> str:
        """Name of its mark."""
        return f"{self.samples}-{self.part}"


def read_staged(descriptor: int) -> StagedCheckpoint | None:
    """What a worker has left in memory; None if there is nothing, or no whole one.

    Raises:
        OSError: the memory can't be read.
    """
    total = os.fstat(descriptor).st_size
    if total <= _END.size:
        return None
    ending = os.pread(descriptor, _END.size, total - _END.size)
    if len(ending) < _END.size:
        return None
    magic, size, samples, part, parts, token = _END.unpack(ending)
    text = token.rstrip(b"\0").decode("ascii", errors="replace")
    numbers = size == total - _END.size and 0 <= samples < _MAX_NUMBER and 0 <= part < max(1, parts)
    if magic != _MAGIC or not numbers or not 0 <= parts <= _MAX_PARTS:
        return None
    if not (_TOKEN.fullmatch(text) if parts else not text):
        return None
    return StagedCheckpoint(size, samples, part, parts, text)


# Marks: a file for each checkpoint, or part of one, with the seconds that copying it may take.


def write_mark(job_folder: Path, staged: StagedCheckpoint, seconds: float) -> None:
    """Have the supervisor wait for a checkpoint.

    Raises:
        OSError: the mark can't be written.
    """
    folder = job_folder / STAGE_OUT_FOLDER
    folder.mkdir(exist_ok=True)
    write_atomically(folder / staged.mark, f"{seconds:g}", sync=False)


def is_awaited(job_folder: Path, staged: StagedCheckpoint) -> bool:
    """Whether a checkpoint still has its mark: not where its job has been removed, or does without it."""
    return (job_folder / STAGE_OUT_FOLDER / staged.mark).exists()


def remove_mark(job_folder: Path, staged: StagedCheckpoint) -> None:
    """Have nobody wait for a checkpoint any more.

    Raises:
        OSError: the mark can't be removed.
    """
    (job_folder / STAGE_OUT_FOLDER / staged.mark).unlink(missing_ok=True)


def seconds_of_mark(mark: Path) -> float:
    """How long copying may take, in seconds, as a mark says; 0 where it says nothing that makes sense."""
    try:
        with open_plain(mark) as file:
            seconds = float(file.read(_MAX_TERMS))
    except (OSError, ValueError):
        return 0.0
    return min(seconds, MAX_SECONDS) if seconds > 0 else 0.0
