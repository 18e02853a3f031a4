"""An elastic training that can't write its checkpoints while a file says so: the kernel refuses what is too long."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import torch

from malletrain.client.distributed import ElasticTraining, init

full = Path(os.environ["MALLETRAIN_JOB_DIR"], "full")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
torch.set_num_threads(1)
model = torch.nn.Linear(512, 512)  # a checkpoint has a MB; logs have less
init()
training = ElasticTraining(
    model,
    torch.optim.SGD(model.parameters(), lr=0.001),
    dataset_size=1_000_000,
    batch_per_worker=4,
    reference_batch=4,
    checkpoint_seconds=0.5,
)


@training.run
def train() -> None:
    while training.samples < 1_000_000:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000 if full.exists() else most, most))
        training.optimizer.zero_grad()
        training.next_indices()
        training.model(torch.ones(4, 512)).mean().backward()
        training.step()
        time.sleep(0.05)


training.finish({})
