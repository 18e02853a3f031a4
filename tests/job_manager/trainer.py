"""A tiny elastic trainer: counts batches until the file `go` lies in the job's folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from malletrain import client

torch.set_num_threads(1)
hvd.init()
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)


def train(state: Any) -> None:
    print(f"world of {hvd.size()}", flush=True)
    ending = 0
    while not ending:
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        state.batches += 1
        time.sleep(0.02)
        state.commit()
        ending = int(hvd.broadcast_object((folder / "go").exists(), root_rank=0))


state = hvd.elastic.TorchState(model, optimizer, batches=0)
hvd.elastic.run(train)(state)
if hvd.rank() == 0:
    client.done({"batches": float(state.batches)})
