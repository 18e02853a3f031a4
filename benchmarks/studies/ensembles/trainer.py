"""A member of the ensemble: a small CNN on pictures that are costly to prepare, with an emulated accelerator."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy
import torch
from torch import nn
from torch.nn import functional

from benchmarks.feeding.pictures import CLASSES, costly
from benchmarks.studies.ensembles.networks import BATCH, SIZE, accelerator_seconds
from malletrain.client.elastic import ElasticTraining, init
from malletrain.client.feed import FeedLimits, SharedSamples

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=4)
parser.add_argument("--depth", type=int, default=1)
parser.add_argument("--epochs", type=int, required=True, help="It has converged after so many.")
parser.add_argument("--step-seconds", type=float, default=0.1, help="Of a step on one GPU.")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
init()
widths = [3, *[options.width] * options.depth]
layers: list[nn.Module] = []
for number, (before, after) in enumerate(pairwise(widths)):
    size = 3 if number else 7
    layers += [nn.Conv2d(before, after, size, stride=2, padding=size // 2), nn.GroupNorm(1, after), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(options.width, CLASSES))
training = ElasticTraining(
    model,
    torch.optim.Adam(model.parameters(), lr=0.01),
    dataset_size=SIZE,
    batch_per_worker=BATCH,
    reference_batch=BATCH,
    hold_batch=True,
)


def from_socket(ports: list[int], until: int) -> Iterator[Any]:
    """This worker's parts of the batches of TensorSocket's producer, which decides their order."""
    from tensorsocket import TensorConsumer

    port, ack_port, *heart_ports = ports
    consumer = TensorConsumer(port, ack_port, (heart_ports[0], heart_ports[1]), batch_size=BATCH)
    while training.samples < until:
        for pictures, labels in consumer:
            yield pictures[training.rank :: training.workers], labels[training.rank :: training.workers]
            if training.samples >= until:
                return


def batches(until: int) -> Any:
    """One batch after the other, from TensorSocket where there is a producer."""
    if ports := os.environ.get("ENSEMBLE_SOCKET"):
        return from_socket([int(port) for port in ports.split(",")], until)
    arguments = {"size": SIZE, "log": os.environ["ENSEMBLE_LOG"], "side": int(os.environ["ENSEMBLE_SIDE"])}
    return SharedSamples(
        costly(**arguments),
        training.batches(until),
        arguments=arguments,
        workers=int(os.environ["ENSEMBLE_WORKERS"]),
        limits=FeedLimits(samples=int(os.environ["ENSEMBLE_KEPT"]), linger_seconds=3.0),
    )


@training.run
def train() -> None:
    for pictures, labels in batches(options.epochs * SIZE):
        ready = time.monotonic() + accelerator_seconds(options.step_seconds, len(labels), training.workers)
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(training.model(pictures), labels) * training.loss_weight(len(labels))
        loss.backward()
        time.sleep(max(0.0, ready - time.monotonic()))
        training.step()


with numpy.load(os.environ["ENSEMBLE_TEST"]) as test, torch.no_grad():
    answers, wanted = model(torch.from_numpy(test["pictures"])), torch.from_numpy(test["labels"])
training.finish(
    {
        "test_loss": functional.cross_entropy(answers, wanted).item(),
        "test_accuracy": (answers.argmax(1) == wanted).float().mean().item(),
    }
)
