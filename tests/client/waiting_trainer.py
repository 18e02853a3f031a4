"""A training of which rank 1 freezes once it has trained for a while, as a node that does not answer any more.

With `slow` it ends then, and rank 0 takes longer to write what it has than workers wait for each other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from malletrain.client.distributed import ElasticTraining, init

FROZEN_AFTER = 64
SLOW_SECONDS = 5.0
FREEZES = sys.argv[1] != "slow"


class Slow:
    """A state that takes long to write at the end."""

    ended = False

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        time.sleep(SLOW_SECONDS * self.ended)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = ElasticTraining(model, optimizer, dataset_size=64, batch_per_worker=4, checkpoint_seconds=3600.0)
slow = Slow()
training.register("slow", slow)


@training.run
def train() -> None:
    while FREEZES or training.samples < FROZEN_AFTER:
        if training.rank == 1 and training.samples >= FROZEN_AFTER:
            Path(sys.argv[1]).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        training.optimizer.zero_grad()
        inputs = torch.randn(4, 4)
        functional.mse_loss(training.model(inputs), inputs[:, :2]).backward()
        training.step()


slow.ended = True
training.finish()
