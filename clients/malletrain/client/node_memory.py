"""What a worker leaves in memory for the one that takes its place on the same node. Needs torch.

The memory is a file without a name, held by whoever starts the node's workers (`malletrain.common.handover_memory`).
It has the bytes of tensors, then a description of them, and at last a few numbers, without which the rest does not
count: a worker that is killed while it writes leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from malletrain.client.available_memory import available_memory, fits_in_memory
from malletrain.client.shard_parts import pack_header, unpack_header
from malletrain.client.warn_once import in_words
from malletrain.common import environment as env
from malletrain.common.handover_memory import MEMORY_NAME, LeaveNotice, read_leave_notice
from malletrain.common.job_folder import CHECKPOINTS_FOLDER
from malletrain.common.stage_out import StagedCheckpoint, StageOutTerms, remove_mark, terms_from_text, write_mark

_MAGIC = b"malletr1"
_END = struct.Struct("<8sqqqq")
"""The magic number, the generation that has written, its samples, bytes of tensors, bytes of the description."""


@dataclass(frozen=True, slots=True)
class Left:
    """A state, or a part of one, that a worker has left.

    Attributes:
        generation: The generation of workers that has left it.
        samples: The job's sample counter.
        description: What the writer says of it: plain data and small tensors.
        data: The bytes of its tensors, as a view of the memory: copy what is needed before `NodeMemory.clear`.
    """

    generation: int
    samples: int
    description: dict[str, Any]
    data: torch.Tensor


class NodeMemory:
    """The memory of this worker's place.

    Attributes:
        node: Name of the worker's node.
        generation: Number of the worker's generation.
        terms: What the node's agent copies of checkpoints once the workers have gone; None: nothing.
    """

    def __init__(
        self, descriptor: int, folder: Path, node: str, generation: int, terms: StageOutTerms | None = None
    ) -> None:
        """Use a memory; see `open_node_memory`.

        Args:
            descriptor: The file in memory.
            folder: The job's folder.
            node: Name of the worker's node.
            generation: Number of the worker's generation.
            terms: What the node's agent copies of checkpoints; None: nothing.
        """
        self.terms = terms
        self.node = node
        self.generation = generation
        self._descriptor = descriptor
        self._folder = folder

    def notice(self) -> LeaveNotice:
        """Where other workers come after those of this generation, and which nodes are given back, as far as told."""
        return read_leave_notice(self._folder, self.generation)

    def begin(self, size: int) -> torch.Tensor:
        """Begin to leave something. What was left before is gone.

        Args:
            size: Bytes of all tensors.

        Returns:
            So many bytes, to be filled before `finish`.

        Raises:
            OSError: there is no memory for it.
        """
        self.clear()
        if not fits_in_memory(size, available_memory()):
            raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)}: {size / 1e9:.1f} GB")
        os.truncate(self._descriptor, size)
        return self._view(size)

    def finish(self, samples: int, description: Mapping[str, Any], size: int) -> None:
        """Have what has been filled in count.

        Args:
            samples: The job's sample counter.
            description: What `Left.description` is to be.
            size: Bytes of all tensors.

        Raises:
            OSError: there is no memory for it.
        """
        text = pack_header(description).numpy().tobytes()
        end = _END.pack(_MAGIC, self.generation, samples, size, len(text))
        for first, content in ((size, text), (size + len(text), end)):
            if os.pwrite(self._descriptor, content, first) != len(content):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def read(self) -> Left | None:
        """What the worker before has left; None if nothing is whole."""
        total = os.fstat(self._descriptor).st_size
        if total < _END.size:
            return None
        magic, generation, samples, size, length = _END.unpack(os.pread(self._descriptor, _END.size, total - _END.size))
        if magic != _MAGIC or size < 0 or length < 0 or size + length + _END.size != total:
            return None
        text = torch.frombuffer(bytearray(os.pread(self._descriptor, length, size)), dtype=torch.uint8)
        return Left(generation, samples, unpack_header(text), self._view(size))

    def terms_for(self, checkpoint_folder: Path | None) -> StageOutTerms | None:
        """What the agent copies of the checkpoints of a folder: it knows the job's own only."""
        return self.terms if checkpoint_folder == self._folder / CHECKPOINTS_FOLDER else None

    def stage(self, staged: StagedCheckpoint, write: Callable[[BinaryIO], object]) -> None:
        """Leave a checkpoint, or a part of one, for the agent to copy once the workers have gone; call it last.

        Args:
            staged: What it is; `size` as far as known.
            write: Writes its file.

        Raises:
            OSError: there is no memory for it, or no mark can be left. Nothing is left in memory.
            Exception: what `write` raises, after which nothing is left either.
        """
        self.clear()
        if not fits_in_memory(staged.size, available_memory()):
            raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)}: {in_words(staged.size)}")
        seconds, most = (0.0, 0) if self.terms is None else (self.terms.seconds, self.terms.max_bytes)
        try:
            with os.fdopen(os.dup(self._descriptor), "wb") as file:
                file.seek(0)
                write(file)
            whole = replace(staged, size=os.fstat(self._descriptor).st_size)
            if whole.size > most:
                raise OSError(errno.EFBIG, f"{in_words(whole.size)}, and the agent copies {in_words(most)}")
            write_mark(self._folder, whole, seconds)
            os.pwrite(self._descriptor, whole.ending(), whole.size)
        except BaseException:
            self.unstage(staged)
            raise
        print(
            f"malletrain: the agent of {self.node} is left {in_words(whole.size)} of the checkpoint at"
            f" {whole.samples} samples, and copies them within {seconds:g} s",
            file=sys.stderr,
        )

    def unstage(self, staged: StagedCheckpoint) -> None:
        """Take back what `stage` has left."""
        self.clear()
        with contextlib.suppress(OSError):
            remove_mark(self._folder, staged)

    def clear(self) -> None:
        """Free the memory. Nobody may look at what was read before any more."""
        os.truncate(self._descriptor, 0)

    def _view(self, size: int) -> torch.Tensor:
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(mmap.mmap(self._descriptor, size), dtype=torch.uint8)


def open_node_memory(environ: Mapping[str, str]) -> NodeMemory | None:
    """The memory that this worker has been given; None if there is none, e.g. under an agent of an earlier version."""
    descriptor, number = environ.get(env.HANDOVER_MEMORY, ""), environ.get(env.LINEAGE, "")
    folder, node = environ.get(env.JOB_DIR), environ.get(env.NODE)
    if not (descriptor.isdecimal() and number.isdecimal() and folder and node):
        return None
    try:
        # A script may have been started in a way that has closed it, and may have another file with its number.
        if MEMORY_NAME not in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            return None
    except OSError:
        return None
    terms = terms_from_text(environ.get(env.STAGE_OUT, ""))
    return NodeMemory(int(descriptor), Path(folder), node, int(number), terms)
