"""Elastic Horovod with few lines: commits when they are needed, one sample counter, a scaled learning rate.

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

import time
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch

from malletrain.client.horovod_state import ElasticState
from malletrain.client.training import Training


def init() -> None:
    """Find the other workers."""
    hvd.init()


class ElasticTraining(Training):
    """A training whose workers live through rescales; see `Training` for what it takes and does.

    What a kill without notice can lose is what has been done since the last commit in memory.

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
        self.model = model
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        # Under another name than "optimizer" it is synchronised before the model: Horovod fills a newcomer's optimizer
        # by a step with gradients of zero, and with weight decay that step changes the weights.
        self._state = ElasticState(distributed_optimizer=self.optimizer, model=model)
        self._state.register_reset_callbacks([self._after_reset])
        self._after_reset()
        return self._state

    def _after_reset(self) -> None:
        self._move()
        if self.rank == 0 and not self._has_state:
            # At the start; or those who had the state have gone before this newcomer got it.
            content = self._durable.load()
            if content is not None:
                self._take(content, self._state)
                self._state.save()

    def _run(self, train: Callable[[], None]) -> None:
        def again(_: object) -> None:
            self._has_state = True
            self._begin()
            train()

        hvd.elastic.run(again)(self._state)

    def _agree(self, word: list[int]) -> list[int]:
        tensor = torch.tensor(word, dtype=torch.int64)
        agreed: list[int] = hvd.broadcast(tensor, root_rank=0, name="malletrain.check").tolist()
        return agreed

    def _gather(self, states: dict[str, Any]) -> list[dict[str, Any]]:
        return list(hvd.allgather_object(states)) if hvd.size() > 1 else [states]

    def _set_passes(self, passes: int) -> None:
        self.optimizer.set_backward_passes_per_step(passes)

    def _asked_to_commit(self) -> tuple[bool, bool]:
        asked, on_disk = super()._asked_to_commit()
        return asked or not self._state._host_messages.empty(), on_disk

    def _commit_in_memory(self) -> None:
        started = time.monotonic()
        self._state.save()
        self._durable.committed(time.monotonic() - started)

    def _committed(self) -> None:
        self._state.check_host_updates()
