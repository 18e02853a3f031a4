"""A small training that notes every batch, under either launcher."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from trainer_settings import BATCH, SIZE

from malletrain.client.elastic import ElasticTraining, init

WANTED = int(os.environ.get("TEST_SAMPLES", "1000000"))
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
notes = (folder / f"notes-{os.getpid()}.jsonl").open("a", buffering=1)


def note(event: str, **more: object) -> None:
    notes.write(json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **more}) + "\n")


def wanted() -> int:
    """Samples of the training. A test may set another number in the job's folder, far ahead of what is reached."""
    try:
        return int((folder / "wanted").read_text())
    except FileNotFoundError:
        return WANTED


torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(SIZE, 16, generator=torch.Generator().manual_seed(1))
labels = (inputs[:, :4].sum(1) > 0).long()
init()
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
training = ElasticTraining(
    model, optimizer, dataset_size=SIZE, batch_per_worker=BATCH, reference_batch=BATCH, commit_seconds=0.5
)
clock = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(clock, step_size=7)
training.register("scheduler", scheduler)
note("start", rank=training.rank, samples=training.samples)
fails_at = int(os.environ.get("TEST_FAILS_AT", "0"))


@training.run
def train() -> None:
    while training.samples < wanted():
        before = training.samples
        indices = training.next_indices()
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(training.model(inputs[indices]), labels[indices])
        loss.backward()
        if 0 < fails_at <= before and training.rank == 1:
            raise RuntimeError("this script is wrong")
        clock.step()
        note(
            "batch",
            before=before,
            indices=indices,
            rank=training.rank,
            size=training.workers,
            weight=model.weight.detach().double().sum().item(),
            scheduled=scheduler.last_epoch,
        )
        training.step(scheduler.step)
        time.sleep(0.02)


note("done", samples=training.samples)
training.finish({"weight": float(model.weight.detach().sum())})
sys.stdout.flush()
