"""torch.distributed or Horovod as most scripts have it, with a checkpoint of its own after each round."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

from malletrain.client import current_job, report

HOROVOD = os.environ.get("WITH") == "horovod"
if HOROVOD:
    import horovod.torch as hvd

    hvd.init()
    rank, workers = hvd.rank(), hvd.size()
else:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()

asked: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
job = current_job()
file = Path(job.checkpoint_directory if job else ".") / "plain.pt"
step = int(torch.load(file)["step"]) if file.exists() else 0
print(f"rank {rank} of {workers} begins at {step}", flush=True)
while True:
    value = torch.tensor([float(bool(asked))])
    if HOROVOD:
        value = hvd.allreduce(value, op=hvd.Sum)
    else:
        dist.all_reduce(value)
    step += 1
    report(8 * workers, position=8 * step)
    if rank == 0 and (value.item() or step % 200 == 0):
        torch.save({"step": step}, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)
    if value.item():
        break
    time.sleep(5.0 if step % 400 == 0 else 0.1)
