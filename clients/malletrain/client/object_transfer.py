"""Objects with tensors, from one worker to the others or into memory: what is plain is pickled, tensors are not."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

TensorKey = tuple[int, torch.Size, torch.dtype]
"""Index, shape and type of a tensor that is kept apart from the object that it belongs to."""


class TensorPickler(pickle.Pickler):
    """Pickles an object without its dense tensors.

    Attributes:
        tensors: These tensors.
    """

    def __init__(self, value: Any) -> None:
        """Pickle an object."""
        self._stream = io.BytesIO()
        super().__init__(self._stream)
        self.tensors: list[torch.Tensor] = []
        self.dump(value)

    @property
    def data(self) -> bytes:
        """The object, without them."""
        return self._stream.getvalue()

    def persistent_id(self, obj: Any) -> TensorKey | None:
        """Keep dense tensors apart."""
        if not isinstance(obj, torch.Tensor) or obj.layout != torch.strided:
            return None
        self.tensors.append(obj.detach())
        return len(self.tensors) - 1, obj.shape, obj.dtype


class TensorUnpickler(pickle.Unpickler):
    """Restores an object of which a `TensorPickler` has made bytes: those of this job's own workers."""

    def __init__(self, data: bytes | bytearray, tensor_of: Callable[[TensorKey], torch.Tensor]) -> None:
        """Read nothing yet.

        Args:
            data: The bytes.
            tensor_of: Returns the tensor that takes the place of one that was kept apart.
        """
        super().__init__(io.BytesIO(data))
        self._tensor_of = tensor_of

    def persistent_load(self, key: TensorKey) -> torch.Tensor:
        """A tensor that was kept apart."""
        return self._tensor_of(key)


def control_device() -> torch.device:
    """Device for small tensors in the default process group: the CPU if the group supports it, as that is faster."""
    if "cpu:" in dist.get_backend_config() or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def broadcast_integers(values: list[int], device: torch.device, source: int = 0) -> list[int]:
    """Return one rank's integers at every rank.

    Args:
        values: Integers; the same number of them at every rank.
        device: Device that the process group supports.
        source: Whose integers they are.
    """
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=source)
    received: list[int] = tensor.tolist()
    return received


def broadcast_object(value: Any, device: torch.device, source: int = 0) -> Any:
    """Return one rank's object at every rank, with its tensors on the CPU.

    Args:
        value: The object; ignored at other ranks.
        device: Device that the process group supports.
        source: Whose object it is.

    Raises:
        RuntimeError: another worker is lost.
    """
    if dist.get_world_size() == 1:
        return value
    packed = TensorPickler(value) if dist.get_rank() == source else None
    size = broadcast_integers([len(packed.data) if packed else 0], device, source)[0]
    memory = bytearray(packed.data) if packed else bytearray(size)
    # On the CPU both tensors share this memory.
    data = torch.frombuffer(memory, dtype=torch.uint8)
    on_device = data.to(device)
    dist.broadcast(on_device, src=source)
    if packed:
        _broadcast_tensors(packed.tensors, device, source)
        return value
    data.copy_(on_device)
    tensors: list[torch.Tensor] = []

    def tensor_of(key: TensorKey) -> torch.Tensor:
        _, shape, dtype = key
        tensors.append(torch.empty(shape, dtype=dtype))
        return tensors[-1]

    received = TensorUnpickler(memory, tensor_of).load()
    _broadcast_tensors(tensors, device, source)
    return received


def _broadcast_tensors(tensors: list[torch.Tensor], device: torch.device, source: int) -> None:
    """Fill the tensors of the other ranks with those of one. All transfers run concurrently."""
    # As bytes: some backends do not support all types.
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8).to(device) for tensor in tensors if tensor.numel()]
    for work in [dist.broadcast(data, src=source, async_op=True) for data in flat]:
        work.wait()
    if dist.get_rank() != source and device.type != "cpu":
        for tensor, data in zip((tensor for tensor in tensors if tensor.numel()), flat, strict=True):
            tensor.copy_(data.cpu().view(tensor.dtype).reshape(tensor.shape))
