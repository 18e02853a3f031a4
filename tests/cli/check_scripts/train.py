"""A small training with a loop of its own. `--fault NAME` gives it one known fault."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from malletrain.client import current_job, install_signal_handler, report, should_commit, should_stop

SIZE, BATCH = 4000, 8
RATE = 0.02
FAULTS = (
    "none",
    "no_report",
    "local_batch",
    "does_not_resume",
    "loader_not_resumed",
    "learning_rate",
    "save_blocks",
    "ends",
    "hangs",
    "two_workers",
    "same_samples",
    "save_on_stop",
    "saves_in_place",
    "long_evaluation",
    "separate_models",
    "schedule",
)
EVALUATION_SECONDS = 22.0


def order(epoch: int) -> list[int]:
    """The order of an epoch."""
    indices: list[int] = torch.randperm(SIZE, generator=torch.Generator().manual_seed(epoch)).tolist()
    return indices


def main() -> None:
    """Train until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--step-seconds", type=float, default=0.02)
    options = parser.parse_args()
    fault = options.fault
    if fault == "ends":
        sys.exit("there is no data set here")
    if fault == "hangs":
        threading.Event().wait()
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    together = fault != "separate_models"
    if together:
        dist.init_process_group("gloo")
    if fault == "two_workers" and workers > 1:
        raise RuntimeError("expected one worker")
    job = current_job()
    assert job is not None
    install_signal_handler()
    torch.manual_seed(0)
    images = torch.randn(SIZE, 16)
    labels = (images.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    rate = RATE if fault == "learning_rate" else RATE * workers
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=SIZE) if fault == "schedule" else None
    path = job.checkpoint_directory / "state.pt"
    position = 0
    if path.exists() and fault != "does_not_resume":
        content = torch.load(path)
        model.load_state_dict(content["model"])
        position = content["position"]
        if schedule is not None:
            schedule.load_state_dict(content["schedule"])
    wrapped = DistributedDataParallel(model) if together else model
    start = position if fault == "loader_not_resumed" else 0
    global_batch = BATCH * workers
    flags = torch.zeros(2)
    while True:
        began = time.monotonic()
        place = position - start + (0 if fault == "same_samples" else rank * BATCH)
        epoch, within = divmod(place, SIZE)
        indices = order(epoch)[within : within + BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(images[indices]), labels[indices]).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        position += global_batch
        if fault == "long_evaluation" and position == 20 * BATCH:
            evaluate(model, images)
        if fault != "no_report":
            report(BATCH if fault == "local_batch" else global_batch, position)
        flags[0], flags[1] = should_commit(), should_stop()
        if together:
            dist.broadcast(flags, 0)
        stopping = bool(flags[1])
        if flags[0] or (stopping and fault != "save_on_stop"):
            content = {"model": model.state_dict(), "position": position}
            save(path, content if schedule is None else {**content, "schedule": schedule.state_dict()}, rank, fault)
        if stopping:
            return
        time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))


def evaluate(model: nn.Module, images: torch.Tensor) -> None:
    """Take long over an evaluation."""
    model.eval()
    end = time.monotonic() + EVALUATION_SECONDS
    while time.monotonic() < end:
        with torch.no_grad():
            model(images)
        time.sleep(0.1)
    model.train()


def save(path: Path, content: dict[str, Any], rank: int, fault: str) -> None:
    """Rank 0 saves; the others wait for it in the next step."""
    if rank != 0 or (fault == "save_on_stop" and should_stop()):
        return
    if fault == "saves_in_place":
        torch.save(content, path)
        return
    unfinished = path.with_suffix(f".{os.getpid()}")
    torch.save(content, unfinished)
    if fault == "save_blocks":
        time.sleep(2.0)
    unfinished.replace(path)


if __name__ == "__main__":
    main()
