"""What a worker leaves in memory for the one that takes its place on the same node. Needs torch.

The memory is a file without a name, held by whoever starts the node's workers (`malletrain.common.handover_memory`).
It has the bytes of tensors, then a description of them, and at last a few numbers, without which the rest does not
count: a worker that is killed while it writes leaves nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from malletrain.client.available_memory import available_memory, fits_in_memory
from malletrain.client.shard_parts import packed, unpacked
from malletrain.common import environment as env
from malletrain.common.handover_memory import MEMORY_NAME, LeaveNotice, read_leave_notice

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
    """The memory of this worker's place."""

    def __init__(self, descriptor: int, folder: Path, node: str, generation: int) -> None:
        """Use a memory; see `open_node_memory`.

        Args:
            descriptor: The file in memory.
            folder: The job's folder.
            node: Name of the worker's node.
            generation: Number of the worker's generation.
        """
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
        text = packed(description).numpy().tobytes()
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
        return Left(generation, samples, unpacked(text), self._view(size))

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
    return NodeMemory(int(descriptor), Path(folder), node, int(number))
