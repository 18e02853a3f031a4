"""Workers that measure the gradient noise scale of a linear regression, and compare it with single samples' gradients.

Started by torchrun as `noise_trainer.py WRAPPER PASSES STEPS OUTPUT`. WRAPPER is ddp, bucket (DistributedDataParallel
whose gradients are views of its buckets) or fsdp. The weights never change, so the noise scale is that of `PROBLEM`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from malletrain.client.gradient_noise import NoiseMeter, PassPlan
from tests.training.noise_problem import PROBLEM, SIZES


def worker_sizes(passes: int, rank: int) -> tuple[int, ...]:
    """Samples of each pass; workers have different numbers."""
    return SIZES[rank][:passes]


def main() -> None:
    wrapper, passes, steps, output = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    model = PROBLEM.model()
    wrapped: nn.Module = model
    if wrapper == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    else:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=wrapper == "bucket")
    noise = NoiseMeter(model, every=2)
    total = sum(sum(worker_sizes(passes, other)) for other in range(workers))
    first_state, expected = {}, {}
    for step in range(steps):
        wrapped.zero_grad()
        batches = [
            PROBLEM.samples(size, (step, rank, number)) for number, size in enumerate(worker_sizes(passes, rank))
        ]
        weights = [len(inputs) * workers / total for inputs, _ in batches]
        noise.begin(PassPlan(len(batches[0][0]), total, passes, weights[0]))
        for number, ((inputs, targets), weight) in enumerate(zip(batches, weights, strict=True)):
            if wrapper != "fsdp":
                wrapped.require_backward_grad_sync = number == passes - 1
            (PROBLEM.loss(wrapped(inputs), targets) * weight).backward()
        noise.end()
        if step == 0:
            first_state = noise.state_dict()
            own = [PROBLEM.sample_gradients(inputs, targets) for inputs, targets in batches]
            everyone: list[list[torch.Tensor]] = [[] for _ in range(workers)]
            dist.all_gather_object(everyone, own)
            expected = PROBLEM.norms([parts[0] for parts in everyone], [one for parts in everyone for one in parts])
    if rank == 0:
        output.write_text(
            json.dumps(
                {"first": first_state, "expected": expected, "noise_scale": noise.noise_scale, **noise.state_dict()}
            )
        )
    dist.barrier()
    os._exit(0)  # now and then DistributedDataParallel hangs while it is taken down


if __name__ == "__main__":
    main()
