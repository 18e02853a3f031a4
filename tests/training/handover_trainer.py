"""A small model, whole or divided, that notes its whole state after loading and after each step."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from malletrain.client import current_job
from malletrain.client.distributed import DistributedTraining, ElasticTraining, init
from malletrain.client.fsdp import ShardedTraining
from malletrain.client.replicas import replica_mesh
from tests.training.fsdp_trainer import BATCH, SIZE, WIDTH, data, digest, network, tensors_of


class SlowToSave:
    """State that takes long to save, but not when it is registered."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._registered = False

    def state_dict(self) -> dict[str, int]:
        """After a while, an empty one."""
        if self._registered:
            time.sleep(self._seconds)
        self._registered = True
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing."""


def main() -> None:
    """Train until the job is ended, and note what happens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--divided", action="store_true")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--handover-bytes", type=int, default=0)
    parser.add_argument("--checkpoint-seconds", type=float, default=3600.0)
    parser.add_argument("--save-seconds", type=float, default=0.0)
    options = parser.parse_args()
    job = current_job()
    assert job is not None
    inputs, targets = data()
    init()
    model: nn.Module = network(options.width)
    settings = {
        "dataset_size": SIZE,
        "batch_per_worker": BATCH // dist.get_world_size(),
        "seed": 3,
        # The only checkpoints are those that the handover demands, or takes the place of.
        "commit_seconds": 3600.0,
        "checkpoint_seconds": options.checkpoint_seconds,
        "handover_bytes": options.handover_bytes,
    }
    training: DistributedTraining
    if options.divided:
        divided = {"mesh": replica_mesh()} if os.environ.get("MALLETRAIN_NODES_PER_REPLICA") else {}
        fully_shard(model, **divided)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        training = ShardedTraining(model, optimizer, copy_seconds=None, **settings)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        training = ElasticTraining(model, optimizer, **settings)
    if options.save_seconds:
        training.register("slow", SlowToSave(options.save_seconds))
    rank, workers = dist.get_rank(), dist.get_world_size()
    notes = Path(job.directory, f"notes-{os.getpid()}.jsonl")

    def note(event: str) -> None:
        state = digest(tensors_of(model, optimizer)) if options.width == WIDTH else ""
        line = {"event": event, "rank": rank, "size": workers, "samples": training.samples, "time": time.time()}
        random = torch.get_rng_state().sum().item()
        with notes.open("a") as file:
            file.write(json.dumps({**line, "state": state, "node": job.node, "random": random}) + "\n")

    @training.run
    def train() -> None:
        note("loaded")
        torch.rand(1 + rank)
        for indices in training.batches():
            training.optimizer.zero_grad()
            nn.functional.mse_loss(training.model(inputs[indices]), targets[indices]).backward()
            # Before the check in it: a worker may end there.
            training.step(lambda: note("batch"))
            time.sleep(0.02)


if __name__ == "__main__":
    main()
