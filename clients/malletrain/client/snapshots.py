"""What belongs to a training's state, copied at one moment: tensors to the CPU, the rest as plain data. Needs torch."""

from __future__ import annotations

import collections
import random
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from malletrain.client.buffers import Loan
from malletrain.client.sealing import SealedWriter

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def snapshot_of(value: Any, name: str, memory: Loan | None = None) -> Any:
    """A copy on the CPU that shares nothing with the training, fit for `torch.load(weights_only=True)`.

    Tensors that share their memory (tied weights) do so in the copy.

    Args:
        value: Tensors, numbers, text, and lists, tuples and dictionaries of them.
        name: What to call it in an error.
        memory: Where to copy tensors to; None: to fresh memory.

    Raises:
        TypeError: there is something else in it, which could not be loaded again.
    """
    copier = _Copier(memory or Loan({}))
    copied = copier.copy(value, name)
    copier.memory.finish()
    return copied


def random_states() -> dict[str, Any]:
    """The states of the random number generators of this process: torch, Python, and CUDA and NumPy if in use."""
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
    """Take back what `random_states` gave; generators that are not there are left out."""
    torch.set_rng_state(states["torch"])
    if "python" in states:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    numpy_random = sys.modules.get("numpy.random")
    if "numpy" in states and numpy_random is not None:
        numpy_random.set_state(states["numpy"])


def writer_of(content: Mapping[str, Any]) -> Callable[[SealedWriter], None]:
    """Writes a snapshot as `torch.save` does."""

    def write(stream: SealedWriter) -> None:
        torch.save(dict(content), stream)

    return write


def read_snapshot(path: Path, names: frozenset[str], sealed: bool) -> dict[str, Any]:
    """Read a checkpoint; the tensors are on the CPU.

    Args:
        path: The file.
        names: What must be in it.
        sealed: Whether it has been found to fit its seal; else it is checked by the sums within the archive.

    Raises:
        ValueError: it is torn or corrupt, or is no checkpoint.
        KeyError: something is missing in it.
    """
    if not sealed:
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
        raise ValueError(f"{path.name} is torn or no checkpoint: {error}") from error
    if broken is not None:
        raise ValueError(f"{path.name} is corrupt: {broken} does not fit its checksum")


class _Copier:
    """Copies nested values; a tensor that is met twice is copied once."""

    def __init__(self, memory: Loan) -> None:
        self.memory = memory
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
            # A scalar of NumPy.
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
            # The versions of a model's layers.
            vars(copied)["_metadata"] = value._metadata
        return copied

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.to("cpu", copy=True)
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if place not in self._known:
            self._known[place] = self.memory.copy(tensor)
        return self._known[place]
