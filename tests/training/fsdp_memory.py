"""How much memory a worker needs beside its shards while it saves, and while it exchanges copies with its neighbour."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

from malletrain.client.distributed import init
from malletrain.client.neighbour_copies import NeighbourCopies
from malletrain.client.replicas import replica_place
from malletrain.client.sharded_checkpoints import ShardedCheckpoints
from tests.training.fsdp_trainer import own_bytes


def anonymous_bytes() -> int:
    """Memory of this process that no file is behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def growth(work: Callable[[], None]) -> tuple[int, int]:
    """How much memory work needs at most, and afterwards."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = most = anonymous_bytes()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, anonymous_bytes())
            time.sleep(0.0005)

    watching = threading.Thread(target=watch)
    watching.start()
    work()
    ended.set()
    watching.join()
    return most - before, anonymous_bytes() - before


def main() -> None:
    """Save and copy, and print what that took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    init()
    width = options.width
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))
    for part in (*model, model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(2, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    def shards() -> dict[str, object]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    checkpoints = ShardedCheckpoints(options.folder, 30.0)

    def save(samples: int, *, last: bool = False) -> None:
        checkpoints.save(samples, shards, dict if dist.get_rank() == 0 else None, last=last)
        checkpoints.wait()

    copies, place = NeighbourCopies(options.folder, 0.0), replica_place(model)

    def copy(samples: int) -> None:
        copies.begin(samples, place, shards, dict, {})
        copies.wait()

    # What is needed once only, such as for threads and groups, does not count.
    save(1)
    found = {"shard": own_bytes(model, optimizer), "saving": growth(lambda: save(2))[0]}
    save(3, last=True)
    found["saving last"] = growth(lambda: save(4, last=True))[0]
    if dist.get_world_size() > 1:
        _, found["first copies"] = growth(lambda: copy(5))
        copy(6)
        found["exchanging"], found["exchanged"] = growth(lambda: copy(7))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
