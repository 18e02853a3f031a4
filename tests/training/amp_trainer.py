"""A small training with autocast, a gradient scaler and accumulated gradients, which notes each step."""

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
from torch.distributed.tensor import DTensor

from malletrain.client.distributed import ElasticTraining, init
from malletrain.client.fsdp import ShardedTraining

SIZE, BATCH, PER_WORKER = 240, 12, 2
"""Samples, the global batch at every scale, and the samples of a pass: 3, 2 and 6 passes for 2, 3 and 1 workers."""
RATE = 0.1
"""Learning rate."""
FIRST_SCALE, INTERVAL = 256.0, 4
"""The scaler's first scale, and after how many good steps it is doubled."""
BAD_STEP = 10
"""In this step, counted from 0, a loss of the last worker overflows: nobody may step, and the scale is halved."""


def network() -> nn.Sequential:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """SGD: a constant factor in the gradients would not change the steps of Adam."""
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, 8, generator=generator), torch.randn(SIZE, 4, generator=generator)


def whole(model: nn.Module) -> list[float]:
    """All weights of a model."""
    parts = [parameter.detach() for parameter in model.parameters()]
    full = [part.full_tensor() if isinstance(part, DTensor) else part for part in parts]
    return [value for part in full for value in part.flatten().tolist()]


def main() -> None:
    """Train, and note what happens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--samples", type=int, default=10**9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    inputs, targets = data()
    init()
    model = network()
    if options.sharded:
        fully_shard(model[0])
        fully_shard(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE, growth_interval=INTERVAL)
    kind = ShardedTraining if options.sharded else ElasticTraining
    training = kind(
        model,
        optimizer_of(model),
        dataset_size=SIZE,
        batch_per_worker=PER_WORKER,
        reference_batch=BATCH,
        hold_batch=True,
        seed=3,
        grad_scaler=scaler,
    )
    notes = Path(os.environ["MALLETRAIN_JOB_DIR"], f"notes-{os.getpid()}.jsonl")

    def note(event: str, indices: list[list[int]]) -> None:
        place = {"event": event, "rank": training.rank, "workers": training.workers, "samples": training.samples}
        state = {"scaler": scaler.state_dict(), "weights": whole(model), "indices": indices, "time": time.time()}
        with notes.open("a") as file:
            file.write(json.dumps(place | state) + "\n")

    @training.run
    def train() -> None:
        note("loaded", [])
        while training.samples < options.samples:
            training.optimizer.zero_grad()
            passes: list[list[int]] = []
            for indices, weight in training.micro_batches():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.mse_loss(training.model(inputs[indices]), targets[indices]) * weight
                if training.samples == BAD_STEP * BATCH and training.rank == training.workers - 1 and not passes:
                    loss = loss * float("inf")
                passes.append(indices)
                scaler.scale(loss).backward()
            training.step(lambda done=passes: note("stepped", done))
            time.sleep(0.02)

    training.finish({"workers": dist.get_world_size()})


if __name__ == "__main__":
    main()
