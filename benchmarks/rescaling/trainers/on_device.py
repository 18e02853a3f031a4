"""As `distributed.py`, on the worker's device: steps count when they are done there. Notes the parts of a start."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

from benchmarks.rescaling.trainers.noting import Noting
from malletrain.client.distributed import ElasticTraining, init
from malletrain.client.elastic import worker_device
from tests.gpu.networks import NETWORKS, images

SAMPLES, BATCH, BATCH_SECONDS = 1024, 32, 0.02
_FOLDER = Path(os.environ["RESCALE_FOLDER"])


def _process_start() -> float:
    """When this process began, in monotonic seconds."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - passed


moments = [("process", _process_start()), ("script", time.monotonic())]
torch.set_num_threads(1)
device = worker_device()
torch.ones(1, device=device).sum().item()
moments.append(("device", time.monotonic()))
init()
moments.append(("group", time.monotonic()))
make, side = NETWORKS[os.environ["RESCALE_NETWORK"]]
model = make().to(device)
inputs, labels = images(SAMPLES, side, device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
training = ElasticTraining(model, optimizer, dataset_size=SAMPLES, batch_per_worker=BATCH)
moments.append(("load", time.monotonic()))


@training.run
def train() -> None:
    noting = Noting(dist.get_rank(), dist.get_world_size())
    while True:
        began = time.monotonic()
        indices = training.next_indices()
        training.optimizer.zero_grad()
        functional.cross_entropy(training.model(inputs[indices]), labels[indices]).backward()
        training.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        noting.batch(training.samples // BATCH)
        if moments[-1][0] != "batch":
            moments.append(("batch", time.monotonic()))
            (_FOLDER / f"start-{os.getpid()}.json").write_text(json.dumps([str(device), dict(moments)]))
        time.sleep(max(0.0, BATCH_SECONDS - (time.monotonic() - began)))
