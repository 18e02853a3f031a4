"""Trains with DistributedDataParallel until it is told to end; on one node each step takes longer."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from malletrain.client import report, should_stop


def keep_busy(seconds: float) -> None:
    """Keep a core busy for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def main(slow_node: str) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while not should_stop():
        optimizer.zero_grad()
        time.sleep(0.02)
        if os.environ["MALLETRAIN_NODE"] == slow_node:
            keep_busy(0.2)
        model(torch.ones(8, 16)).sum().backward()
        optimizer.step()
        report(8 * dist.get_world_size())


main(sys.argv[1])
