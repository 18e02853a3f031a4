"""A small model with FSDP2 that notes its whole state after loading, after each step and at the end."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from malletrain.client import current_job
from malletrain.client.fsdp import ShardedTraining, init
from malletrain.client.replicas import replica_mesh
from tests.training import exact_numbers

SIZE, BATCH = 240, 12
"""Samples, and the global batch at every scale: it can be divided by 2, 3 and 4."""
WIDTH, RATE = 13, 0.01


def network(width: int) -> nn.Sequential:
    """Two layers, whose rows can't be divided evenly among 2, 3 and 4 workers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, 7, generator=generator), torch.randn(SIZE, 3, generator=generator)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the parts of all workers."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Weights, then the optimizer's state in the order of the weights, whole."""
    found = [whole(parameter.detach()) for parameter in model.parameters()]
    for parameter in model.parameters():
        state = optimizer.state.get(parameter)
        found += [whole(state[name]) for name in ("exp_avg", "exp_avg_sq")] if state else []
    return found


def digest(tensors: list[torch.Tensor]) -> str:
    """Of all bits."""
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def own_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Memory of this worker's part of weights and optimizer."""
    parts: list[torch.Tensor] = list(model.parameters())
    parts += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    local = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
    return sum(part.numel() * part.element_size() for part in local)


def main() -> None:
    """Train, and note what happens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0)
    parser.add_argument("--copy-seconds", type=float, default=None)
    options = parser.parse_args()
    job = current_job()
    assert job is not None
    inputs, targets = exact_numbers.data(SIZE) if options.exact else data()
    init()
    model = exact_numbers.network(options.width) if options.exact else network(options.width)
    divided = {"mesh": replica_mesh()} if os.environ.get("MALLETRAIN_NODES_PER_REPLICA") else {}
    fully_shard(model[0], **divided)
    fully_shard(model, **divided)
    optimizer = torch.optim.AdamW(model.parameters(), lr=exact_numbers.RATE if options.exact else RATE)
    if options.exact:
        optimizer.register_step_post_hook(lambda *_: exact_numbers.round_weights(model))
    training = ShardedTraining(
        model,
        optimizer,
        dataset_size=SIZE,
        batch_per_worker=BATCH // dist.get_world_size(),
        seed=3,
        # Commits may be saved as well, so that a test would have more checkpoints than it asks for.
        commit_seconds=options.checkpoint_seconds,
        checkpoint_seconds=options.checkpoint_seconds,
        copy_seconds=options.copy_seconds,
    )
    notes = Path(job.directory, f"notes-{os.getpid()}.jsonl")

    def note(event: str) -> None:
        found = tensors_of(model, optimizer)
        stream = io.BytesIO()
        torch.save(found, stream)
        line = {"event": event, "rank": dist.get_rank(), "workers": dist.get_world_size(), "samples": training.samples}
        line |= {"digest": digest(found), "tensors": stream.getvalue().hex(), "bytes": own_bytes(model, optimizer)}
        if dist.get_rank() == 0 or event == "loaded":
            with notes.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def loss_of(indices: list[int]) -> torch.Tensor:
        outputs = training.model(inputs[indices])
        if options.exact:
            return exact_numbers.loss_of(outputs, targets[indices], dist.get_world_size())
        return nn.functional.mse_loss(outputs, targets[indices])

    @training.run
    def train() -> None:
        note("loaded")
        for indices in training.batches(options.samples):
            began = time.monotonic()
            training.optimizer.zero_grad()
            loss_of(indices).backward()
            # Before the check in it: a worker may end there.
            training.step(lambda: note("stepped"))
            time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))

    training.finish({"workers": dist.get_world_size()})


if __name__ == "__main__":
    main()
