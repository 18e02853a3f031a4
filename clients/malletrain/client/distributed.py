"""torch.distributed with few lines. All workers are restarted at every rescale and continue from a checkpoint.

```python
init()
training = ElasticTraining(model, optimizer, dataset_size=len(images), batch_per_worker=32, reference_batch=64)

@training.run
def train() -> None:
    while training.samples < wanted:
        indices = training.next_indices()
        training.optimizer.zero_grad()
        loss_of(training.model, indices).backward()
        training.step()

training.finish({"accuracy": ...})
```
"""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from malletrain.client import should_commit, should_stop
from malletrain.client.collective_limit import collective_limit
from malletrain.client.devices import AppliedSteps, group_backend, present_device
from malletrain.client.extra_state import ExtraState
from malletrain.client.job_context import read_collective_seconds
from malletrain.client.lr_scaling import RateRamp
from malletrain.client.replica import Stopped
from malletrain.client.training import Training
from malletrain.client.warn_once import describe

_LOSS_SECONDS = 5.0
"""After a failed operation, how long to wait for the signal that another worker is lost."""
_POLL_SECONDS = 0.005
_NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"


def init(backend: str | None = None) -> None:
    """Initialise the process group; without a launcher this process is its only member.

    Under a launcher this calls `torch.distributed.init_process_group()`. A collective that takes longer than
    MALLETRAIN_COLLECTIVE_SECONDS fails (5 minutes; torch's own are 10 and 30).

    Args:
        backend: As for `init_process_group`; None: its default, or gloo alone where workers share a GPU.

    Raises:
        ValueError: MALLETRAIN_COLLECTIVE_SECONDS is no time.
    """
    seconds = read_collective_seconds(os.environ)
    timeout = collective_limit.begin(seconds)
    # When NCCL itself hangs, its own watch ends the process. torch reads this when it makes the group.
    os.environ.setdefault(_NCCL_HEARTBEAT, str(math.ceil(seconds)))
    if "RANK" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    elif backend is None and torch.cuda.is_available() and os.environ.get("WORLD_SIZE") != "1":
        found, rank, workers = next(rendezvous("env://", timeout=timeout))
        store = dist.PrefixStore("default_pg", found)
        backend = group_backend(store, rank, workers, present_device())
        dist.init_process_group(backend, store=store, rank=rank, world_size=workers, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)


@dataclass
class PlainTrainingState:
    """See `malletrain.client.replica.TrainingState`."""

    samples: int = 0
    ramp: RateRamp = field(default_factory=RateRamp)
    random_states: list[dict[str, Any]] = field(default_factory=list)
    extra: ExtraState = field(default_factory=ExtraState)


class DistributedTraining(Training):
    """A training whose workers save, exit and are restarted at a rescale, whoever wraps its model.

    A process without a process group is the only worker.
    """

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return int(dist.get_rank()) if dist.is_initialized() else 0

    @property
    def workers(self) -> int:
        """Number of workers at the present scale."""
        return int(dist.get_world_size()) if dist.is_initialized() else 1

    def _load(self, plain_model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[PlainTrainingState, bool]:
        """Continue from the newest checkpoint; also returns whether there is one."""
        self._plain_model = plain_model
        self.optimizer = optimizer
        self._device = control_device() if dist.is_initialized() else torch.device("cpu")
        state = PlainTrainingState()
        # One worker reads for all: they have the same state, and a parallel file system has less to do.
        with collective_limit.raised():
            content = self._checkpoints.load() if self.rank == 0 else None
            if self.workers > 1:
                content = broadcast_object(content, self._device)
        if content is not None:
            self._restore(content, state)
        self._sampler.set_scale(self.rank, self.workers)
        self._applied = AppliedSteps(plain_model)
        return state, content is not None

    def finish(self, metrics: Mapping[str, float] | None = None) -> None:
        """As `Training.finish`."""
        with collective_limit.raised():
            super().finish(metrics)

    def _count(self) -> None:
        self._applied.note()
        super()._count()

    def _run(self, train: Callable[[], None]) -> None:
        try:
            self._begin()
            train()
        except RuntimeError as error:
            self._save_after_loss(error)
            raise

    def _save_after_loss(self, error: RuntimeError) -> None:
        """If the launcher says that another worker is lost, save the state after the last complete step.

        Returns if it does not: the error is the script's own. On a GPU, with NCCL, a script is ahead of what has been
        done: a step that waits for a lost worker there is never complete, and neither are those after it.

        Raises:
            Stopped: another worker is lost.
        """
        deadline = time.monotonic() + _LOSS_SECONDS
        while not should_stop():
            # During a step the state is neither that before it nor that after it.
            if not self._consistent or time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)
        print(f"malletrain: another worker is lost ({describe(error)[:200]})", file=sys.stderr)
        if not self._applied.wait():
            print("malletrain: a step hangs on the GPU: the last checkpoint counts", file=sys.stderr)
            raise Stopped(1)
        self._marker.create()
        self._stop(save=True)

    def _broadcast(self, values: list[int]) -> list[int]:
        return broadcast_integers(values, self._device) if dist.is_initialized() else values

    def _gather(self, states: dict[str, Any]) -> list[dict[str, Any]]:
        if self.workers == 1:
            return [states]
        gathered: list[Any] | None = [None] * self.workers if self.rank == 0 else None
        dist.gather_object(states, gathered, dst=0)
        return gathered or []

    def _commit_requested(self) -> tuple[bool, bool]:
        requested = should_commit(every=None)
        return requested, requested

    def _commit_in_memory(self) -> None:
        """Do nothing: the memory of a worker does not survive a rescale."""

    def _committed(self) -> None:
        """Do nothing: there is no rescale while the workers live."""


class ElasticTraining(DistributedTraining):
    """A training whose workers save, exit and are restarted at a rescale. See `Training` for arguments and methods.

    There are no commits in memory: a commit is a checkpoint. If a worker is lost without notice, one of the others
    saves the state after the last complete step, so that only the present batch is lost. A model that is already
    wrapped in `DistributedDataParallel` keeps its wrapper.

    Attributes:
        model: The model in `DistributedDataParallel`.
        optimizer: The optimizer as it was given.
    """

    def step(self, *also: Callable[[], object]) -> None:
        """As `Training.step`."""
        self._passes_done = 0
        super().step(*also)

    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> PlainTrainingState:
        wrapped = model if isinstance(model, DistributedDataParallel) else None
        state, loaded = self._load(wrapped.module if wrapped is not None else model, optimizer)
        # If all have loaded a checkpoint, the weights need not be synchronised.
        wrapped = wrapped or DistributedDataParallel(model, init_sync=not loaded)
        self.model = self._wrapped = wrapped
        self._passes_done, self._passes = 0, 1
        wrapped.register_forward_pre_hook(self._before_pass)
        return state

    def _set_passes(self, passes: int) -> None:
        self._passes, self._passes_done = passes, 0

    def _before_pass(self, module: torch.nn.Module, inputs: object) -> None:
        """Exchange gradients in the last pass of a step only. Those of the earlier passes are added up before."""
        del module, inputs
        if torch.is_grad_enabled():
            self._passes_done += 1
            self._wrapped.require_backward_grad_sync = self._passes_done >= self._passes


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
