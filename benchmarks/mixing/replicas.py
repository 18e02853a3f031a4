"""Several workers, each with `ElasticTraining`, and an evaluation after each round, in which all wait for rank 0."""

from __future__ import annotations

import time

import torch

from malletrain.client import phase
from malletrain.client.elastic import ElasticTraining, init

data = torch.randn(6400, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
init()
training = ElasticTraining(model, optimizer, dataset_size=len(data), batch_per_worker=16, reference_batch=16)
print(f"rank {training.rank} of {training.workers} begins at {training.samples}", flush=True)


@training.run
def train() -> None:
    """Train until somebody stops it."""
    evaluated = training.samples
    while True:
        x = data[training.next_indices()]
        training.optimizer.zero_grad()
        (training.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        training.step()
        time.sleep(0.1)
        if training.samples - evaluated > 12_800:
            evaluated = training.samples
            with phase("evaluate"):
                time.sleep(45 if training.rank == 0 else 0)
