"""A small real training that notes every batch, for tests."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

from malletrain.client.horovod import ElasticTraining

WANTED = int(os.environ.get("TEST_SAMPLES", "1000000"))
BATCH = 8
SIZE = 512

folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
notes = (folder / f"notes-{os.environ['MALLETRAIN_NODE']}-{os.getpid()}.jsonl").open("a", buffering=1)


def note(event: str, **more: object) -> None:
    notes.write(json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **more}) + "\n")


torch.set_num_threads(1)
torch.manual_seed(0)
hvd.init()
inputs = torch.randn(SIZE, 16, generator=torch.Generator().manual_seed(1))
labels = (inputs[:, :4].sum(1) > 0).long()
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
training = ElasticTraining(
    model, optimizer, dataset_size=SIZE, batch_per_worker=BATCH, reference_batch=BATCH, commit_seconds=1.0
)
note("start", rank=hvd.rank(), samples=training.samples)


@training.run
def train() -> None:
    while training.samples < WANTED:
        before = training.samples
        indices = training.next_indices()
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs[indices]), labels[indices])
        loss.backward()
        rate = training.optimizer.param_groups[0]["lr"]
        note("batch", rank=hvd.rank(), size=hvd.size(), before=before, indices=indices, rate=rate, loss=loss.item())
        training.step()
        time.sleep(0.02)


note("done", samples=training.samples)
training.finish({"weight": float(model.weight.detach().sum())})
