"""A small real training under Elastic Horovod. Each step also sleeps for the time that a slow network would take."""

from __future__ import annotations

import os
import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

from malletrain.client.horovod import ElasticTraining

COMPUTE, BANDWIDTH, LATENCY = (float(part) for part in os.environ["TEST_STEP"].split(","))
BATCH, SIZE = 8, 4096

torch.set_num_threads(1)
torch.manual_seed(0)
hvd.init()
inputs = torch.randn(SIZE, 16, generator=torch.Generator().manual_seed(1))
labels = (inputs[:, :4].sum(1) > 0).long()
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
training = ElasticTraining(
    model, optimizer, dataset_size=SIZE, batch_per_worker=BATCH, reference_batch=BATCH, commit_seconds=2.0
)


@training.run
def train() -> None:
    due = time.monotonic()
    while training.samples < 10**9:
        nodes = hvd.size()
        indices = training.next_indices()
        training.optimizer.zero_grad()
        functional.cross_entropy(model(inputs[indices]), labels[indices]).backward()
        wanted = COMPUTE + BANDWIDTH * (nodes - 1) / nodes + LATENCY * (nodes - 1)
        # Steps follow a fixed schedule, so that the real time of a step is included in the planned one.
        due = max(due + wanted, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        training.step()


training.finish({})
