"""A training of `benchmarks/feed.py`, or a producer: `trainer.py feed|alone|tensorsocket|producer JSON`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.feeding.pictures import CLASSES, costly
from malletrain.client.feed import SharedSamples
from malletrain.client.sampling import EpochOrder, plain_batches


def shared(settings: dict[str, Any], feed: str) -> SharedSamples:
    """Batches as MalleTrain hands them out."""
    arguments = {"size": settings["size"], "log": settings["log"]}
    batches = plain_batches(EpochOrder(settings["size"]), settings["batch"], 0, settings["samples"])
    return SharedSamples(
        costly(**arguments),
        batches,
        feed=feed,
        arguments=arguments,
        workers=settings["workers"],
        # All trainings begin at once, and none of them while the feed starts.
        patience_seconds=60.0 if feed else 2.0,
    )


def from_socket(settings: dict[str, Any]) -> Iterator[Any]:
    """Batches of TensorSocket's producer, which decides their order."""
    from tensorsocket import TensorConsumer

    consumer = TensorConsumer(batch_size=settings["batch"])
    left = settings["samples"]
    while left > 0:
        for batch in consumer:
            yield batch
            left -= len(batch[1])
            if left <= 0:
                return


def produce(settings: dict[str, Any]) -> None:
    """TensorSocket's producer, until it is killed."""
    from tensorsocket import TensorProducer

    dataset: Any = costly(settings["size"], settings["log"])
    loader = DataLoader(dataset, batch_size=settings["batch"], shuffle=True, num_workers=settings["workers"])
    producer = TensorProducer(loader)
    while True:
        for _ in producer:
            pass


def train(batches: Iterable[Any]) -> int:
    """Train a small CNN; how many samples it has had."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))
    model(torch.zeros(1, 3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = 0
    for pictures, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
        seen += len(labels)
    return seen


def wait_as_accelerator(batches: Iterable[Any], seconds: float) -> int:
    """Take no CPU time for a step, as with an accelerator; how many samples it has had.

    Args:
        batches: Pictures and labels.
        seconds: Of a step.
    """
    seen = 0
    for _, labels in batches:
        time.sleep(seconds)
        seen += len(labels)
    return seen


def main() -> None:
    """Run, and print what came of it."""
    kind, settings = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    if kind == "producer":
        produce(settings)
        return
    started = time.monotonic()
    samples: Any = from_socket(settings) if kind == "tensorsocket" else shared(settings, settings["feed"])
    seen = wait_as_accelerator(samples, settings["step"]) if settings["step"] else train(samples)
    print(json.dumps({"seen": seen, "seconds": time.monotonic() - started}))


if __name__ == "__main__":
    main()
