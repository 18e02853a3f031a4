"""An Elastic Horovod script as users have it, without the client library; its rank 1 ends in ways of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

BATCHES = 60
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
torch.set_num_threads(1)
hvd.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def leave_early(batch: int) -> None:
    """With TEST_LEAVES, the first rank 1 ends with 0 in mid training."""
    left = folder / "left"
    if "TEST_LEAVES" in os.environ and hvd.rank() == 1 and batch == BATCHES // 2 and not left.exists():
        left.touch()
        sys.exit(0)


@hvd.elastic.run
def train(state: Any) -> None:
    while state.batch < BATCHES:
        leave_early(state.batch)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.batch += 1
        time.sleep(0.02)
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, batch=0)
train(state)
print(f"rank {hvd.rank()} of {hvd.size()}: {state.batch} batches", flush=True)
if "TEST_LINGERS" in os.environ and hvd.rank() == 1:
    time.sleep(600)
