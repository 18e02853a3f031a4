"""The digits example as a training that rank 0 ends itself at a given sample, as a rescale would."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

from malletrain.client.elastic import ElasticTraining, init

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/digits"))

from train import digits, evaluate, network

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--stop-at", type=int, default=0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--hold-batch", action="store_true")
parser.add_argument("--step-seconds", type=float, default=0.0)
arguments = parser.parse_args()
notes = (Path(os.environ["MALLETRAIN_JOB_DIR"]) / f"notes-{os.getpid()}.jsonl").open("a", buffering=1)

torch.set_num_threads(1)
torch.manual_seed(arguments.seed)
train_x, test_x, train_y, test_y = digits()
model = network(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
init()
training = ElasticTraining(
    model,
    optimizer,
    dataset_size=len(train_x),
    batch_per_worker=16,
    reference_batch=48,
    seed=arguments.seed,
    warmup_samples=2000,
    hold_batch=arguments.hold_batch,
)


@training.run
def train() -> None:
    model.train()
    while training.samples < arguments.samples:
        started = time.monotonic()
        training.optimizer.zero_grad()
        for indices, weight in training.micro_batches():
            loss = functional.cross_entropy(training.model(train_x[indices]), train_y[indices])
            (loss * weight).backward()
        if training.rank == 0:
            note = {"event": "batch", "time": time.time(), "rank": 0, "size": training.workers}
            notes.write(json.dumps(note | {"before": training.samples}) + "\n")
            if 0 < arguments.stop_at <= training.samples:
                signal.raise_signal(signal.SIGTERM)
        training.step()
        time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - started)))


accuracy, test_loss = evaluate(model, test_x, test_y)
training.finish({"accuracy": accuracy, "loss": test_loss})
