"""torch.distributed with MalleTrain's helper: workers are restarted at a rescale and go on from the checkpoint."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from benchmarks.rescaling.trainers.noting import BATCH, BATCH_SECONDS, SAMPLES, Noting, loss_of, small_model
from malletrain.client.distributed import ElasticTraining, init

init()
model = small_model()
training = ElasticTraining(
    model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), dataset_size=SAMPLES, batch_per_worker=BATCH
)


@training.run
def train() -> None:
    noting = Noting(dist.get_rank(), dist.get_world_size())
    while True:
        indices = training.next_indices()
        training.optimizer.zero_grad()
        loss_of(training.model, indices).backward()
        training.step()
        noting.batch(training.samples // BATCH)
        time.sleep(BATCH_SECONDS)
