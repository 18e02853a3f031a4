"""A small training that notes every batch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from malletrain.client.feed import FeedLimits, SharedSamples
from malletrain.client.sampling import EpochOrder, plain_batches
from tests.client.feed.feed_data import noted


def train(name: str, settings: dict[str, Any]) -> None:
    """Train until there is nothing to do, or there is a file `stop`."""
    folder = Path(settings["folder"])
    log = str(folder / "prepared.log")
    arguments = {"size": settings["size"], "log": log, "fails_at": settings["fails_at"], "pause": settings["pause"]}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = EpochOrder(settings["size"], seed=settings["seed"])
    samples = SharedSamples(
        noted(**arguments),
        plain_batches(order, settings["batch"], settings["start"], settings["until"]),
        feed=settings["feed"],
        arguments=arguments,
        workers=settings["workers"],
        patience_seconds=settings["patience"],
        limits=FeedLimits(**settings["limits"]),
    )
    number = settings["start"]
    with (folder / f"{name}.jsonl").open("a", buffering=1) as notes:
        for pictures, more in samples:
            loss = ((model(pictures).squeeze(1) - more["label"] / settings["size"]) ** 2 + more["shift"]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            line = {"first": number, "indices": more["label"].tolist(), "loss": loss.item(), "time": time.monotonic()}
            number += len(more["label"])
            notes.write(json.dumps(line | {"received": samples.received, "prepared": samples.prepared}) + "\n")
            if (folder / "stop").exists():
                return
            time.sleep(settings["step"])
