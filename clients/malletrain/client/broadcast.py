"""Broadcasts rank 0's objects with torch.distributed: tensors as they are, everything else pickled. Needs torch."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
import torch.distributed as dist

_TensorKey = tuple[int, torch.Size, torch.dtype]
"""Index, shape and type of a tensor that is sent separately."""


def control_device() -> torch.device:
    """Device for small tensors in the default process group: the CPU if the group supports it, as that is faster."""
    if "cpu:" in dist.get_backend_config() or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def broadcast_integers(values: list[int], device: torch.device) -> list[int]:
    """Return rank 0's integers at every rank.

    Args:
        values: Integers; the same number of them at every rank.
        device: Device that the process group supports.
    """
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=0)
    received: list[int] = tensor.tolist()
    return received


def broadcast_object(value: Any, device: torch.device) -> Any:
    """Return rank 0's object at every rank, with its tensors on the CPU.

    Args:
        value: The object; ignored at other ranks.
        device: Device that the process group supports.

    Raises:
        RuntimeError: another worker is lost.
    """
    if dist.get_world_size() == 1:
        return value
    packed = _Packer(value) if dist.get_rank() == 0 else None
    size = broadcast_integers([len(packed.data) if packed else 0], device)[0]
    memory = bytearray(packed.data) if packed else bytearray(size)
    # On the CPU both tensors share this memory.
    data = torch.frombuffer(memory, dtype=torch.uint8)
    on_device = data.to(device)
    dist.broadcast(on_device, src=0)
    if packed:
        _broadcast_tensors(packed.tensors, device, is_source=True)
        return value
    data.copy_(on_device)
    unpacked = _Unpacker(memory)
    _broadcast_tensors(unpacked.tensors, device, is_source=False)
    return unpacked.value


def _broadcast_tensors(tensors: list[torch.Tensor], device: torch.device, is_source: bool) -> None:
    """Fill the tensors of the other ranks with rank 0's. All transfers run concurrently."""
    # As bytes: some backends do not support all types.
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8).to(device) for tensor in tensors if tensor.numel()]
    for work in [dist.broadcast(data, src=0, async_op=True) for data in flat]:
        work.wait()
    if not is_source and device.type != "cpu":
        for tensor, data in zip((tensor for tensor in tensors if tensor.numel()), flat, strict=True):
            tensor.copy_(data.cpu().view(tensor.dtype).reshape(tensor.shape))


class _Packer(pickle.Pickler):
    """Pickles an object without its dense tensors, which are collected in `tensors`."""

    def __init__(self, value: Any) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream)
        self.tensors: list[torch.Tensor] = []
        self.dump(value)

    @property
    def data(self) -> bytes:
        return self._stream.getvalue()

    def persistent_id(self, obj: Any) -> _TensorKey | None:
        if not isinstance(obj, torch.Tensor) or obj.layout != torch.strided:
            return None
        self.tensors.append(obj.detach())
        return len(self.tensors) - 1, obj.shape, obj.dtype


class _Unpacker(pickle.Unpickler):
    """Restores an object with uninitialised tensors, which are collected in `tensors`."""

    def __init__(self, data: bytearray) -> None:
        super().__init__(io.BytesIO(data))
        self.tensors: list[torch.Tensor] = []
        self.value = self.load()

    def persistent_load(self, key: _TensorKey) -> torch.Tensor:
        _, shape, dtype = key
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]
