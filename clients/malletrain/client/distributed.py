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

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from malletrain.client import should_commit, should_stop
from malletrain.client.devices import AppliedSteps, group_backend, present_device
from malletrain.client.extra_state import ExtraState
from malletrain.client.gradient_noise import NoiseMeter
from malletrain.client.handover import Handover, gather_values, leave_whole, take_whole, tell_disk
from malletrain.client.job_context import read_collective_seconds
from malletrain.client.lr_scaling import RateRamp
from malletrain.client.node_memory import NodeMemory, open_node_memory
from malletrain.client.object_transfer import broadcast_integers, broadcast_object, control_device
from malletrain.client.replica import Stopped
from malletrain.client.snapshots import random_states, state_as_it_is, tensor_bytes, writer_of
from malletrain.client.training import Training
from malletrain.client.warn_once import describe
from malletrain.common.job_limits import PHASE_SECONDS
from malletrain.common.stage_out import StagedCheckpoint


class CollectiveLimit:
    """The time limit of the collectives of a group that `init` has made; a script's own group keeps its own."""

    def __init__(self) -> None:
        """There is no such group."""
        self._seconds: float | None = None

    def begin(self, seconds: float) -> timedelta:
        """The group is about to be made."""
        self._seconds = seconds
        return timedelta(seconds=seconds)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """While workers wait for one that reads or writes a checkpoint, which may take as long as any phase may."""
        if self._seconds is None or self._seconds >= PHASE_SECONDS or not dist.is_initialized():
            yield
            return
        _set_limit(PHASE_SECONDS)
        try:
            yield
        finally:
            _set_limit(self._seconds)


def _set_limit(seconds: float) -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


collective_limit = CollectiveLimit()
"""Of this process, which has one default process group."""


_LOSS_SECONDS = 5.0
"""After a failed operation, how long to wait for the signal that another worker is lost."""
_POLL_SECONDS = 0.005
_HANDOVER_BYTES = 128 << 20
"""What is smaller is on disk and read again within the time that the handover takes."""
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
        base_store, rank, workers = next(rendezvous("env://", timeout=timeout))
        store = dist.PrefixStore("default_pg", base_store)
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

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        handover_bytes: int | None = _HANDOVER_BYTES,
        **options: Any,
    ) -> None:
        """As `Training`.

        Args:
            model: The model.
            optimizer: The optimizer of its parameters.
            handover_bytes: From which size in bytes on a worker's state is handed over in the memory of nodes at a
                change of scale, rather than by way of the disk; None: never.
            options: As for `malletrain.client.training.Training`.

        Raises:
            ValueError: an argument is out of its range.
        """
        if handover_bytes is not None and handover_bytes < 0:
            raise ValueError(f"handover_bytes: expected at least 0, or None, got {handover_bytes}")
        self._handover_bytes = handover_bytes
        self._memory: NodeMemory | None = open_node_memory(os.environ) if dist.is_initialized() else None
        super().__init__(model, optimizer, **options)

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
        with collective_limit.raised():
            content = self._take_over()
            handed_over = content is not None
            # One worker reads for all: they have the same state, and a parallel file system has less to do.
            if not handed_over:
                content = self.checkpoints.load() if self.rank == 0 else None
                if self.workers > 1:
                    content = broadcast_object(content, self._device)
        if content is not None:
            self._restore(content, state, on_disk=not handed_over)
        self._sampler.set_scale(self.rank, self.workers)
        self._applied = AppliedSteps(plain_model)
        return state, content is not None

    def _take_over(self) -> Mapping[str, Any] | None:
        """What the workers before have left in memory; None if the newest state is on disk. All workers call it."""
        # Workers of release 0.1 among these do not ask each other, and would never answer.
        if not dist.is_initialized() or self._as_release_0_1:
            return None
        on_disk = self.checkpoints.newest_samples() if self.rank == 0 else -1
        return take_whole(self._memory, on_disk, lambda own, source: broadcast_object(own, self._device, source))

    def _hands_over(self) -> bool:
        if self._memory is None:
            return False
        notice = self._memory.notice()
        # On a node that is given back there may be less time than a save takes; see `leave_whole`.
        return bool(notice.staying and self._is_large()) or self._memory.node in notice.released

    def _rescales_by_disk(self, size: int) -> bool:
        return self._memory is None or self._handover_bytes is None or size < self._handover_bytes

    def _is_large(self) -> bool:
        """Whether the state had better be left in memory than saved."""
        return self._handover_bytes is not None and self._state_bytes() >= self._handover_bytes

    def _state_bytes(self) -> int:
        """Bytes of this worker's model and optimizer."""
        return tensor_bytes([self._plain_model.state_dict(), self.optimizer.state_dict()])

    def _hand_over(self) -> bool:
        states = gather_values(random_states())
        large = self.rank == 0 and self._is_large()
        stages_out = self.rank == 0 and self._is_better_staged_out()
        handover = leave_whole(
            self._memory, self.samples, self._content, states, in_memory=large, stages_out=stages_out
        )
        if handover is Handover.STAGE_OUT and self._memory is not None and self._stage_out(self._memory, states):
            return True
        if handover in (Handover.SAVE_ALONE, Handover.STAGE_OUT):
            self._marker.create()
            saved = self.checkpoints.save_and_wait(self.samples, lambda: self._content(states))
            self._leave(saved=saved)
        return handover is Handover.DONE

    def _is_better_staged_out(self) -> bool:
        """At rank 0: whether the checkpoint had better be left to the node's agent, which has more time."""
        terms = None if self._memory is None else self._memory.terms_for(self.checkpoints.folder)
        return terms is not None and self.checkpoints.is_better_staged_out(self._state_bytes(), terms)

    def _stage_out(self, memory: NodeMemory, states: list[Any]) -> bool:
        try:
            write = writer_of(state_as_it_is(self._content(states), "checkpoint"))
            memory.stage(StagedCheckpoint(self._state_bytes(), self.samples), write)
        except Exception as error:  # noqa: BLE001 - as for a save: memory may be short, or a user's object raise anything
            tell_disk(error)
            return False
        return True

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

    def _make_noise(self, every: int) -> NoiseMeter | None:
        return NoiseMeter(self._plain_model, every=every)

    def _set_passes(self, passes: int) -> None:
        self._passes, self._passes_done = passes, 0

    def _before_pass(self, module: torch.nn.Module, inputs: object) -> None:
        """Exchange gradients in the last pass of a step only. Those of the earlier passes are added up before."""
        del module, inputs
        if torch.is_grad_enabled():
            self._passes_done += 1
            self._wrapped.require_backward_grad_sync = self._passes_done >= self._passes
