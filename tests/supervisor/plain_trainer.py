"""A torchrun script as users have it: no client library, a checkpoint now and then and at SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WANTED = int(os.environ.get("TEST_STEPS", "1000000"))
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
checkpoint = folder / "plain.pt"
notes = (folder / f"notes-{os.environ['MALLETRAIN_NODE']}-{os.getpid()}.jsonl").open("a", buffering=1)
stopping = False


def note(event: str, **more: object) -> None:
    notes.write(json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), "rank": rank, **more}) + "\n")


def stop(*_: object) -> None:
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 1))
step = 0
if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    step = state["step"]
    model.load_state_dict(state["model"])
note("start", step=step, restart=int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
while step < WANTED:
    model(torch.ones(2, 4)).sum().backward()
    step += 1
    note("batch", size=size, step=step)
    time.sleep(0.02)
    stop_now = torch.tensor(float(stopping))
    dist.all_reduce(stop_now)
    if (stop_now or step % 10 == 0) and rank == 0:
        torch.save({"step": step, "model": model.state_dict()}, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)
    if stop_now:
        os._exit(0)
note("done", step=step)
