"""Fails in a way of choice, as its first argument says: a training whose fault is its own."""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from malletrain.client import report

HOW = sys.argv[1]
BATCHES = 40

if HOW not in ("segfault", "kill"):
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    print(f"worker {rank} of {workers} starts", flush=True)
print("starts", flush=True)
for batch in range(BATCHES):
    if HOW == "segfault" and batch == 2:
        ctypes.string_at(0)
    if HOW == "kill" and batch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "one" and batch == 5 and rank == workers - 1:
        raise ValueError(f"no label 31 in row {batch}")
    if HOW == "all" and batch == 3:
        raise KeyError("momentum")
    if HOW not in ("segfault", "kill"):
        dist.all_reduce(torch.ones(4))
    report(4)
    time.sleep(0.05)
