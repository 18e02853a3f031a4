"""A small elastic training on shared samples, which notes every batch as tests/training/trainer.py does."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from torch import nn

from malletrain.client.elastic import ElasticTraining, init
from malletrain.client.feed import FeedLimits, SharedSamples
from tests.client.feed.feed_data import noted
from tests.training.trainer_settings import BATCH, SIZE

WANTED = int(os.environ["TEST_SAMPLES"])
arguments = {"size": SIZE, "log": os.environ["TEST_LOG"]}
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
notes = (folder / f"notes-{os.getpid()}.jsonl").open("a", buffering=1)
torch.set_num_threads(1)
torch.manual_seed(0)
init()
model = nn.Sequential(nn.Flatten(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = ElasticTraining(model, optimizer, dataset_size=SIZE, batch_per_worker=BATCH, commit_seconds=0.5)
samples = SharedSamples(
    noted(**arguments),
    training.batches(WANTED),
    feed="tests.client.feed.feed_data:noted",
    arguments=arguments,
    workers=1,
    limits=FeedLimits(linger_seconds=2.0),
)


@training.run
def train() -> None:
    for pictures, more in samples:
        before = training.samples
        training.optimizer.zero_grad()
        training.model(pictures).square().mean().backward()
        line = {
            "event": "batch",
            "time": time.time(),
            "pid": os.getpid(),
            "before": before,
            "indices": more["label"].tolist(),
            "rank": training.rank,
            "size": training.workers,
            "received": samples.received,
        }
        notes.write(json.dumps(line) + "\n")
        training.step()
        time.sleep(0.02)


training.finish()
