"""A training on the worker's device, which notes each step, and how long the parts of its start have taken."""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from malletrain.client.distributed import ElasticTraining, init
from malletrain.client.elastic import worker_device
from tests.gpu.networks import NETWORKS, images

SIZE = 512


def process_start() -> float:
    """When this process began, in seconds since the epoch."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def main() -> None:
    """Train until this worker is asked to leave, or to the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, default="small")
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument(
        "--compile", choices=("default", "reduce-overhead"), help="compile; the latter with CUDA graphs"
    )
    parser.add_argument("--backend", help="of the process group")
    options = parser.parse_args()
    torch.set_num_threads(1)
    moments = {"process": process_start(), "main": time.time()}
    device = worker_device()
    torch.ones(1, device=device).sum().item()
    moments["device"] = time.time()
    init(options.backend)
    dist.barrier() if dist.get_world_size() > 1 else None
    moments["joined"] = time.time()
    make, side = NETWORKS[options.network]
    model = make().to(device)
    if options.compile:
        model.compile(mode=options.compile)
    inputs, labels = images(SIZE, side, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    training = ElasticTraining(
        model, optimizer, dataset_size=SIZE, batch_per_worker=options.batch, commit_seconds=1.0, checkpoint_seconds=1.0
    )
    moments["loaded"] = time.time()
    notes = Path(os.environ["MALLETRAIN_JOB_DIR"], f"notes-{os.getpid()}.jsonl")

    def note(event: str, **found: Any) -> None:
        place = {"pid": os.getpid(), "rank": training.rank, "size": training.workers, "time": time.time()}
        with notes.open("a") as file:
            file.write(json.dumps({"event": event, **place, **found}) + "\n")

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def done(loss: torch.Tensor, indices: list[int]) -> None:
        """Note a step before the check in it: the worker may end there."""
        value = loss.item()  # waits for the forward pass
        if device.type == "cuda":
            torch.cuda.synchronize()
        if "first" not in moments:
            moments["first"] = time.time()
            memory = torch.cuda.memory_reserved() if device.type == "cuda" else 0
            note("start", moments=moments, device=str(device), backend=str(dist.get_backend_config()), memory=memory)
        before, after = training.samples, training.samples + training.global_batch
        note("batch", before=before, samples=after, loss=value, indices=indices)

    @training.run
    def train() -> None:
        while training.samples < options.samples:
            began = time.monotonic()
            indices = training.next_indices()
            training.optimizer.zero_grad()
            loss = functional.cross_entropy(training.model(inputs[indices]), labels[indices])
            loss.backward()
            training.step(functools.partial(done, loss, indices))
            time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))

    training.finish({"workers": training.workers})


if __name__ == "__main__":
    main()
