"""torch.distributed with few lines, where all workers are restarted at every rescale and go on from the checkpoint.

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
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from malletrain.client import should_commit, should_stop
from malletrain.client.complaints import describe
from malletrain.client.learning_rate import Ramp
from malletrain.client.registered import Registered
from malletrain.client.sharing import agree, control_device, share
from malletrain.client.training import Training

_LOSS_SECONDS = 5.0
"""How long a failed operation may turn out to be the loss of another worker."""
_LOOK_SECONDS = 0.005


def init() -> None:
    """Find the other workers; without a launcher this process is the only one.

    Under a launcher this is `torch.distributed.init_process_group()`. Under MalleTrain the process waits here until its
    place is known: what a script does before, such as reading its data, keeps nobody waiting.
    """
    _warm_up()
    # Under MalleTrain, RANK is known only when the wait is over.
    if "RANK" in os.environ or os.environ.get("MALLETRAIN_BACKEND") == "torchrun":
        dist.init_process_group()
    else:
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)


def _warm_up() -> None:
    """Do once what takes longer the first time: the backward pass, and reading a checkpoint."""
    tensor = torch.zeros(1, requires_grad=True)
    tensor.sum().backward()
    stream = io.BytesIO()
    torch.save({"state": tensor.detach()}, stream)
    stream.seek(0)
    torch.load(stream, weights_only=True)


@dataclass
class PlainState:
    """What a checkpoint has besides model and optimizer; see `malletrain.client.replica.State`."""

    samples: int = 0
    ramp: Ramp = field(default_factory=Ramp)
    random_states: list[dict[str, Any]] = field(default_factory=list)
    registered: Registered = field(default_factory=Registered)


class ElasticTraining(Training):
    """A training whose workers save, leave and are restarted at a rescale; see `Training` for what it takes and does.

    There are no commits in memory: what is asked for with a commit is a checkpoint. When a worker is lost, one of the
    others saves what all of them had after the last complete step, so that a kill without notice loses the batch under
    way and no more. A model that is wrapped in `DistributedDataParallel` already stays in its wrapper.

    Attributes:
        model: The model in `DistributedDataParallel`.
        optimizer: The optimizer as it was given.
    """

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return int(dist.get_rank())

    @property
    def workers(self) -> int:
        """Number of workers at the present scale."""
        return int(dist.get_world_size())

    def step(self, *also: Callable[[], object]) -> None:
        """As `Training.step`."""
        self._passes_done = 0
        super().step(*also)

    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> PlainState:
        wrapped = model if isinstance(model, DistributedDataParallel) else None
        self._plain = wrapped.module if wrapped is not None else model
        self.optimizer = optimizer
        self._device = control_device()
        state = PlainState()
        # One reads, all take: they can't differ, and a parallel file system is asked once.
        content = share(self._durable.load() if self.rank == 0 else None, self._device)
        if content is not None:
            self._take(content, state)
        # What all have loaded need not be made equal once more.
        wrapped = wrapped or DistributedDataParallel(model, init_sync=content is None)
        self.model = self._wrapped = wrapped
        self._passes_done, self._passes = 0, 1
        wrapped.register_forward_pre_hook(self._before_pass)
        self._shares.move(self.rank, self.workers)
        return state

    def _run(self, train: Callable[[], None]) -> None:
        try:
            self._begin()
            train()
        except RuntimeError as error:
            self._save_after_loss(error)
            raise

    def _save_after_loss(self, error: RuntimeError) -> None:
        """If the launcher says that another worker is lost, save what all had after the last complete step.

        Raises:
            Stopped: it is so. Otherwise the error is the script's own.
        """
        deadline = time.monotonic() + _LOSS_SECONDS
        while not should_stop():
            # In mid step, the state is neither that before it nor that after it.
            if not self._whole or time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)
        self._sign.show()
        print(f"malletrain: another worker is lost ({describe(error)[:200]})", file=sys.stderr)
        self._stop(save=True)

    def _agree(self, word: list[int]) -> list[int]:
        return agree(word, self._device)

    def _gather(self, states: dict[str, Any]) -> list[dict[str, Any]]:
        if self.workers == 1:
            return [states]
        gathered: list[Any] | None = [None] * self.workers if self.rank == 0 else None
        dist.gather_object(states, gathered, dst=0)
        return gathered or []

    def _set_passes(self, passes: int) -> None:
        self._passes, self._passes_done = passes, 0

    def _before_pass(self, module: torch.nn.Module, inputs: object) -> None:
        """Exchange gradients in the last pass of a step only: those of the passes before are summed up until then."""
        del module, inputs
        if torch.is_grad_enabled():
            self._passes_done += 1
            self._wrapped.require_backward_grad_sync = self._passes_done >= self._passes

    def _asked_to_commit(self) -> tuple[bool, bool]:
        asked = should_commit()
        return asked, asked

    def _commit_in_memory(self) -> None:
        """Memory does not outlive a rescale here."""

    def _committed(self) -> None:
        """A rescale does not come while the workers live."""
