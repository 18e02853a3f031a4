"""A member of a fleet: a small CNN on shared samples, which notes every batch as tests/training/trainer.py does."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from torch import nn
from torch.nn import functional

from malletrain.client.elastic import ElasticTraining, init
from malletrain.client.feed import FeedLimits, SharedSamples
from tests.system.fleet.pictures import SIDE, pictures
from tests.training.trainer_settings import BATCH, SIZE

parser = argparse.ArgumentParser()
parser.add_argument("--channels", type=int, required=True)
parser.add_argument("--layers", type=int, required=True)
parser.add_argument("--epochs", type=int, required=True, help="It has converged after so many.")
parser.add_argument("--step-seconds", type=float, default=0.0)
options = parser.parse_args()
if options.epochs < 1:
    sys.exit("this one fails")
arguments = {"size": SIZE, "log": os.environ["TEST_LOG"], "cost_seconds": float(os.environ["TEST_COST"])}
notes = (Path(os.environ["MALLETRAIN_JOB_DIR"]) / f"notes-{os.getpid()}.jsonl").open("a", buffering=1)
torch.set_num_threads(1)
torch.manual_seed(0)
init()
widths = [3, *[options.channels] * options.layers]
convolutions = [layer for a, b in pairwise(widths) for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())]
model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(options.channels * SIDE * SIDE, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = ElasticTraining(model, optimizer, dataset_size=SIZE, batch_per_worker=BATCH, commit_seconds=0.5)
samples = SharedSamples(
    pictures(**arguments),
    training.batches(options.epochs * SIZE),
    arguments=arguments,
    limits=FeedLimits(linger_seconds=5.0),
)


@training.run
def train() -> None:
    for batch, targets in samples:
        before = training.samples
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(training.model(batch), targets["label"])
        loss.backward()
        line = {
            "event": "batch",
            "time": time.time(),
            "pid": os.getpid(),
            "gpu": os.environ["MALLETRAIN_NODE"],
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "before": before,
            "indices": targets["index"].tolist(),
            "rank": training.rank,
            "size": training.workers,
            "loss": loss.item(),
            "received": samples.received,
        }
        notes.write(json.dumps(line) + "\n")
        training.step()
        time.sleep(options.step_seconds)


training.finish({"loss": 0.0})
