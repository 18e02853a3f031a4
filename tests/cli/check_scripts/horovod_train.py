"""A small training under Elastic Horovod. `--fault NAME` gives it one known fault."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn

from malletrain.client.horovod import ElasticTraining, init

SIZE, BATCH = 4000, 8
FAULTS = ("none", "learning_rate", "loader_not_resumed", "same_samples", "save_blocks")


class Slow:
    """Something whose state takes long to copy."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        time.sleep(2.0)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


def main() -> None:
    """Train until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, default="none")
    fault = parser.parse_args().fault
    init()
    torch.manual_seed(0)
    images = torch.randn(SIZE, 16)
    labels = (images.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    training = ElasticTraining(
        model,
        optimizer,
        dataset_size=SIZE,
        batch_per_worker=BATCH,
        reference_batch=None if fault == "learning_rate" else BATCH,
    )
    if fault == "save_blocks":
        training.register("slow", Slow())
    resumed_at = training.samples

    @training.run
    def train() -> None:
        while True:
            began = time.monotonic()
            indices = training.next_indices()
            if fault == "loader_not_resumed":
                indices = [(index - resumed_at) % SIZE for index in indices]
            elif fault == "same_samples":
                indices = [(training.samples + number) % SIZE for number in range(BATCH)]
            training.optimizer.zero_grad()
            nn.functional.cross_entropy(training.model(images[indices]), labels[indices]).backward()
            training.step()
            time.sleep(max(0.0, 0.02 - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
