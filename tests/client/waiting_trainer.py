"""A training of which rank 1 freezes once it has trained for a while, as a node that does not answer any more."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch.nn import functional

from malletrain.client.distributed import ElasticTraining, init

FROZEN_AFTER = 64

init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = ElasticTraining(model, optimizer, dataset_size=64, batch_per_worker=4, checkpoint_seconds=3600.0)


@training.run
def train() -> None:
    while True:
        if training.rank == 1 and training.samples >= FROZEN_AFTER:
            Path(sys.argv[1]).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        training.optimizer.zero_grad()
        inputs = torch.randn(4, 4)
        functional.mse_loss(training.model(inputs), inputs[:, :2]).backward()
        training.step()
