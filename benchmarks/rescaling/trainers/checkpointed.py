"""torch.distributed as torchrun's manual has it: a checkpoint now and then, from which restarted workers go on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.rescaling.trainers.noting import BATCH, BATCH_SECONDS, SAMPLES, Noting, loss_of, small_model

_CHECKPOINT = Path(os.environ["RESCALE_FOLDER"]) / "checkpoint.pt"
_BATCHES_PER_CHECKPOINT = 10

dist.init_process_group("gloo")
inner = small_model()
optimizer = torch.optim.SGD(inner.parameters(), lr=0.01, momentum=0.9)
number = 0
if _CHECKPOINT.exists():
    content = torch.load(_CHECKPOINT, weights_only=True)
    inner.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    number = content["batch"]
model = DistributedDataParallel(inner)
noting = Noting(dist.get_rank(), dist.get_world_size())
while True:
    optimizer.zero_grad()
    loss_of(model, torch.randint(0, SAMPLES, (BATCH,))).backward()
    optimizer.step()
    number += 1
    noting.batch(number)
    if number % _BATCHES_PER_CHECKPOINT == 0 and dist.get_rank() == 0:
        temporary = _CHECKPOINT.with_suffix(".new")
        torch.save({"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "batch": number}, temporary)
        temporary.replace(_CHECKPOINT)
    time.sleep(BATCH_SECONDS)
