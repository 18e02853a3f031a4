"""Elastic Horovod with few lines: commits when needed, one sample counter, scaled learning rates.

```python
hvd.init()
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

import copy
import time
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch

from malletrain.client.extra_state import ExtraState, States
from malletrain.client.lr_scaling import RateRamp
from malletrain.client.training import Training


def init() -> None:
    """Initialise Horovod."""
    hvd.init()


class ElasticState(hvd.elastic.TorchState):  # type: ignore[misc]  # Horovod has no types.
    """A `TorchState` that also commits, rolls back and synchronises the objects that the user has registered.

    Attributes:
        samples: Samples processed so far by all workers together.
        ramp: How the learning rates follow the global batch.
        random_states: States of the random number generators by rank, until they are restored.
        extra: Objects that the user has registered.
    """

    samples: int
    ramp: RateRamp
    random_states: list[dict[str, Any]]

    def __init__(self, **state: Any) -> None:
        self.extra = ExtraState()
        self._saved: States = {}
        super().__init__(samples=0, ramp=RateRamp(), random_states=[], **state)

    def save(self) -> None:
        """Commit in memory."""
        super().save()
        self._saved = copy.deepcopy(self.extra.states())

    def restore(self) -> None:
        """Roll back to the last commit."""
        super().restore()
        self.extra.load(self._saved)

    def sync(self) -> None:
        """Receive rank 0's state."""
        super().sync()
        if self.extra:
            states = hvd.broadcast_object(self.extra.states(), root_rank=0, name="malletrain.extra")
            self.extra.load(states)
        self._saved = copy.deepcopy(self.extra.states())


class ElasticTraining(Training):
    """A training whose workers survive rescales. See `Training` for arguments and methods.

    If a worker is lost without notice, the batches since the last commit in memory are lost. There is no `grad_scaler`.

    Attributes:
        model: The plain model.
        optimizer: Horovod's distributed optimizer.
    """

    _state: ElasticState
    _has_state = False

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return int(hvd.rank())

    @property
    def workers(self) -> int:
        """Number of workers at the present scale."""
        return int(hvd.size())

    def _join(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> ElasticState:
        if self._grad_scaler is not None:
            raise ValueError("grad_scaler: expected none under Horovod, whose optimizer adds up gradients in its step")
        self.model = model
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        # Under a name other than "optimizer" it is synchronised before the model: Horovod initialises the optimizer of
        # a new worker by a step with zero gradients, and with weight decay that step changes the weights.
        self._state = ElasticState(distributed_optimizer=self.optimizer, model=model)
        self._state.register_reset_callbacks([self._after_reset])
        self._after_reset()
        return self._state

    def _after_reset(self) -> None:
        self._set_scale()
        if self.rank == 0 and not self._has_state:
            # At the start, or all workers with the state have left before this new one received it.
            content = self.checkpoints.load()
            if content is not None:
                self._restore(content, self._state)
                self._state.save()

    def _run(self, train: Callable[[], None]) -> None:
        def again(_: object) -> None:
            self._has_state = True
            self._begin()
            train()

        hvd.elastic.run(again)(self._state)

    def _broadcast(self, values: list[int]) -> list[int]:
        tensor = torch.tensor(values, dtype=torch.int64)
        received: list[int] = hvd.broadcast(tensor, root_rank=0, name="malletrain.check").tolist()
        return received

    def _gather(self, states: dict[str, Any]) -> list[dict[str, Any]]:
        return list(hvd.allgather_object(states)) if hvd.size() > 1 else [states]

    def _set_passes(self, passes: int) -> None:
        self.optimizer.set_backward_passes_per_step(passes)

    def _commit_requested(self) -> tuple[bool, bool]:
        requested, on_disk = super()._commit_requested()
        return requested or not self._state._host_messages.empty(), on_disk

    def _commit_in_memory(self) -> None:
        started = time.monotonic()
        self._state.save()
        self.checkpoints.committed(time.monotonic() - started)

    def _committed(self) -> None:
        self._state.check_host_updates()
