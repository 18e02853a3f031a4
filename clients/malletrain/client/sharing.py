"""Rank 0's state at every rank of torch.distributed: tensors as they are, everything else pickled. Needs torch."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
import torch.distributed as dist

_Place = tuple[int, torch.Size, torch.dtype]


def control_device() -> torch.device:
    """Where small tensors have to be for the default process group: on the CPU if it can, as nobody waits there."""
    if "cpu:" in dist.get_backend_config() or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def agree(word: list[int], device: torch.device) -> list[int]:
    """Rank 0's numbers, at every rank; as many everywhere."""
    tensor = torch.tensor(word, dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=0)
    agreed: list[int] = tensor.tolist()
    return agreed


def share(value: Any, device: torch.device) -> Any:
    """Rank 0's value, at every rank; its tensors are on the CPU.

    Args:
        value: What to share; of no account but at rank 0.
        device: Where the process group takes tensors.

    Raises:
        RuntimeError: another worker is lost.
    """
    if dist.get_world_size() == 1:
        return value
    sends = dist.get_rank() == 0
    packed = _Pack(value) if sends else None
    size = agree([len(packed.text) if packed else 0], device)[0]
    memory = bytearray(packed.text) if packed else bytearray(size)
    # On the CPU this is the same memory.
    text = torch.frombuffer(memory, dtype=torch.uint8)
    on_device = text.to(device)
    dist.broadcast(on_device, src=0)
    if packed:
        _send(packed.tensors, device, sends=True)
        return value
    text.copy_(on_device)
    unpacked = _Unpack(memory)
    _send(unpacked.tensors, device, sends=False)
    return unpacked.value


def _send(tensors: list[torch.Tensor], device: torch.device, sends: bool) -> None:
    """Fill the other ranks' tensors with rank 0's, all on the way at once."""
    # As bytes: not every backend knows every type.
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8).to(device) for tensor in tensors if tensor.numel()]
    for work in [dist.broadcast(data, src=0, async_op=True) for data in flat]:
        work.wait()
    if not sends and device.type != "cpu":
        for tensor, data in zip((tensor for tensor in tensors if tensor.numel()), flat, strict=True):
            tensor.copy_(data.cpu().view(tensor.dtype).reshape(tensor.shape))


class _Pack(pickle.Pickler):
    """A value as bytes, with its dense tensors left out."""

    def __init__(self, value: Any) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream)
        self.tensors: list[torch.Tensor] = []
        self.dump(value)

    @property
    def text(self) -> bytes:
        return self._stream.getvalue()

    def persistent_id(self, obj: Any) -> _Place | None:
        if not isinstance(obj, torch.Tensor) or obj.layout != torch.strided:
            return None
        self.tensors.append(obj.detach())
        return len(self.tensors) - 1, obj.shape, obj.dtype


class _Unpack(pickle.Unpickler):
    """The value again, with empty tensors."""

    def __init__(self, text: bytearray) -> None:
        super().__init__(io.BytesIO(text))
        self.tensors: list[torch.Tensor] = []
        self.value = self.load()

    def persistent_load(self, place: _Place) -> torch.Tensor:
        _, shape, dtype = place
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]
