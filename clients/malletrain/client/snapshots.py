"""A training's state at one moment: tensors, everything else as plain data; copied to the CPU, or as it is.

Needs torch.
"""

from __future__ import annotations

import collections
import contextlib
import random
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch

from malletrain.client.checksum import ChecksumWriter

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_MAX_WASTE = 0.25
"""Largest part of a storage that is written though no tensor of the state is in it."""
_TensorKey = tuple[tuple[int, ...], torch.dtype, bool]
"""Shape, type, and whether the memory is page-locked."""


class SnapshotMemoryPool:
    """Keeps the memory of one snapshot for the next one: to newly allocated memory a copy takes three times as long."""

    def __init__(self) -> None:
        # Operations of a deque are atomic. A lock could be held during a fork: memory is released by another thread.
        self._spare: deque[dict[_TensorKey, list[torch.Tensor]]] = deque(maxlen=1)

    @property
    def spare_bytes(self) -> int:
        """Bytes that are kept for the next snapshot."""
        kept = self._spare[-1] if self._spare else {}
        return sum(tensor.nbytes for tensors in kept.values() for tensor in tensors)

    def acquire(self) -> SnapshotMemory:
        """Memory for a snapshot."""
        return SnapshotMemory(self._spare.pop() if self._spare else {}, self._spare)


class SnapshotMemory:
    """The memory of one snapshot."""

    def __init__(
        self,
        spare: dict[_TensorKey, list[torch.Tensor]] | None = None,
        pool: deque[dict[_TensorKey, list[torch.Tensor]]] | None = None,
    ) -> None:
        """Use the memory of an earlier snapshot.

        Args:
            spare: Tensors that can be overwritten.
            pool: Where the memory goes when it is released; None: nowhere.
        """
        self._spare = spare or {}
        self._pool = pool
        self._used: dict[_TensorKey, list[torch.Tensor]] = {}
        self._pending = False

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a dense tensor to the CPU. The copy is complete after `finish`."""
        # Page-locked memory: a GPU copies to it several times as fast.
        key = (tuple(tensor.shape), tensor.dtype, tensor.is_cuda)
        spare = self._spare.get(key)
        target = spare.pop() if spare else torch.empty(key[0], dtype=key[1], pin_memory=key[2])
        self._used.setdefault(key, []).append(target)
        target.copy_(tensor, non_blocking=key[2])
        self._pending = self._pending or key[2]
        return target

    def finish(self) -> None:
        """Wait for copies from a GPU."""
        if self._pending:
            torch.cuda.synchronize()
            self._pending = False

    def release(self) -> None:
        """Return the memory: the snapshot is not needed any more."""
        used, self._used, self._spare = self._used, {}, {}
        if used and self._pool is not None:
            self._pool.append(used)


def snapshot_of(value: Any, name: str, memory: SnapshotMemory | None = None) -> Any:
    """Copy a value to the CPU, so that `torch.load(weights_only=True)` can load it. The copy shares no memory with it.

    Tensors that share memory with each other (tied weights) do so in the copy.

    Args:
        value: Tensors, numbers, text, and lists, tuples and dictionaries of these.
        name: Name of the value in errors.
        memory: Memory for the copies; None: new memory.

    Raises:
        TypeError: it contains something else, which could not be loaded again.
    """
    memory = memory or SnapshotMemory()
    copied = _Copier(memory).copy(value, name)
    memory.finish()
    return copied


def state_as_it_is(value: Any, name: str) -> Any:
    """A value as `snapshot_of` returns it, but with the tensors themselves: for a write while nothing changes them.

    `torch.save` writes whole storages, and brings those of a GPU to the CPU one after the other. So only tensors that
    are small parts of large storages are copied, to be written without what lies around them.

    Args:
        value: As for `snapshot_of`.
        name: Name of the value in errors.

    Raises:
        TypeError: as `snapshot_of`.
    """
    return _Copier(_TensorsThemselves(value)).copy(value, name)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested dictionaries, lists and tuples, each once, however often it occurs."""
    known: set[tuple[object, ...]] = set()
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, torch.Tensor):
            if (place := _place_of(item)) not in known:
                known.add(place)
                yield item
        elif isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list | tuple):
            left.extend(item)


def tensor_bytes(value: Any, *, own: bool = False) -> int:
    """Bytes of the tensors in a value.

    Args:
        value: As for `tensors_in`.
        own: Of tensors that are divided among workers, count this worker's part, not the whole.
    """
    return sum(
        (tensor := _own_part(each) if own else each).numel() * tensor.element_size() for each in tensors_in(value)
    )


def random_states() -> dict[str, Any]:
    """States of the random number generators of this process: torch, Python, and CUDA and NumPy if they are in use."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state()
        if isinstance(state, tuple) and state[0] == "MT19937":
            kind, words, place, has_gauss, cached = state
            states["numpy"] = (kind, [int(word) for word in words], int(place), int(has_gauss), float(cached))
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore what `random_states` returned. Generators that are not in use are left out."""
    torch.set_rng_state(states["torch"])
    if "python" in states:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    numpy_random = sys.modules.get("numpy.random")
    if "numpy" in states and numpy_random is not None:
        numpy_random.set_state(states["numpy"])


def writer_of(content: Mapping[str, Any]) -> Callable[[ChecksumWriter | BinaryIO], None]:
    """A function that writes a snapshot with `torch.save`."""

    def write(stream: ChecksumWriter | BinaryIO) -> None:
        with _without_archive_checksums():
            torch.save(dict(content), stream)

    return write


@contextlib.contextmanager
def _without_archive_checksums() -> Iterator[None]:
    """Have torch leave out the CRC-32 of each record, where it can: that takes longer than the file's own SHA-256.

    `torch.load` does not look at them; programs that unpack the archive complain. It is a setting of the process: if
    another thread saves a file meanwhile, that may lack them as well.
    """
    setter: Callable[[bool], None] | None = getattr(torch.serialization, "set_crc32_options", None)
    if setter is None:
        yield
        return
    before: bool = torch.serialization.get_crc32_options()
    setter(False)
    try:
        yield
    finally:
        setter(before)


def read_snapshot(path: Path, names: frozenset[str], verified: bool) -> dict[str, Any]:
    """Read a checkpoint, with its tensors on the CPU.

    Args:
        path: The file.
        names: Entries that it must have.
        verified: Whether it has been verified by its checksum. If not, the checksums in the archive are verified.

    Raises:
        ValueError: it is truncated or corrupt, or not a checkpoint.
        KeyError: an entry is missing.
    """
    if not verified:
        _check_archive(path)
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    missing = names - content.keys()
    if missing:
        raise KeyError(f"{path.name} lacks {', '.join(sorted(missing))}")
    return content


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"{path.name} is truncated or not a checkpoint: {error}") from error
    if broken is not None:
        raise ValueError(f"{path.name} is corrupt: {broken} does not fit its checksum")


class _TensorCopies(Protocol):
    """Makes what stands for a dense tensor in the copy of a state."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is written in the place of a tensor."""


class _TensorsThemselves:
    """Stand for themselves, unless that would have much more written."""

    def __init__(self, value: Any) -> None:
        """Look how much of each storage the tensors of a value use."""
        self._used: collections.Counter[int] = collections.Counter()
        for tensor in tensors_in(value):
            if tensor.layout == torch.strided:
                self._used[tensor.untyped_storage().data_ptr()] += tensor.nbytes

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        wasted = storage.nbytes() - self._used[storage.data_ptr()]
        return tensor if wasted <= storage.nbytes() * _MAX_WASTE else _copy(tensor)


class _Copier:
    """Copies nested values. A tensor that occurs twice is copied once."""

    def __init__(self, memory: _TensorCopies) -> None:
        self._memory = memory
        self._known: dict[tuple[object, ...], torch.Tensor] = {}

    def copy(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach())
        if type(value) in _PLAIN:
            return value
        if isinstance(value, dict):
            return self._dictionary(value, name)
        if type(value) in (list, tuple):
            return type(value)(self.copy(entry, f"{name}[{index}]") for index, entry in enumerate(value))
        if getattr(value, "ndim", None) == 0:
            # A NumPy scalar.
            return self.copy(value.item(), name)
        raise TypeError(
            f"{name}: expected tensors, numbers, text, lists, tuples and dictionaries, got {type(value).__name__}"
        )

    def _dictionary(self, value: dict[Any, Any], name: str) -> dict[Any, Any]:
        ordered = isinstance(value, collections.OrderedDict)
        copied: dict[Any, Any] = collections.OrderedDict() if ordered else {}
        for key, entry in value.items():
            copied[self.copy(key, f"{name} key")] = self.copy(entry, f"{name}[{key!r}]")
        if ordered and hasattr(value, "_metadata"):
            # Versions of a model's layers.
            vars(copied)["_metadata"] = value._metadata
        return copied

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.to("cpu", copy=True)
        place = _place_of(tensor)
        if place not in self._known:
            self._known[place] = self._memory.copy(tensor)
        return self._known[place]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's part of a tensor that is divided (a DTensor); other tensors as they are."""
    to_local: Callable[[], torch.Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _place_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """What is the same for tensors that are the same memory, seen in the same way."""
    tensor = _own_part(tensor)
    if tensor.layout != torch.strided or not tensor.numel():
        return (id(tensor),)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
