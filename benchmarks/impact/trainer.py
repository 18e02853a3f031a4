"""A small training with Elastic Horovod that does not end by itself. It is slow: all nodes share one machine."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

from malletrain.client.horovod import ElasticTraining

_SIZE = 4096
_BATCH = 16
_STEP_SECONDS = 0.05

torch.set_num_threads(1)
torch.manual_seed(0)
hvd.init()
inputs = torch.randn(_SIZE, 16, generator=torch.Generator().manual_seed(1))
labels = (inputs[:, :4].sum(1) > 0).long()
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
training = ElasticTraining(
    model, optimizer, dataset_size=_SIZE, batch_per_worker=_BATCH, reference_batch=_BATCH, commit_seconds=1.0
)


@training.run
def train() -> None:
    while True:
        indices = training.next_indices()
        training.optimizer.zero_grad()
        functional.cross_entropy(model(inputs[indices]), labels[indices]).backward()
        training.step()
        time.sleep(_STEP_SECONDS)
