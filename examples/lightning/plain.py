"""A small convolutional network on scikit-learn's digits with PyTorch Lightning: `python plain.py --epochs 10`."""

from __future__ import annotations

import argparse
import time

import lightning as L  # noqa: N812  # as in Lightning's documentation
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(L.LightningModule):
    """Two convolutions and a linear layer."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self.step_seconds = step_seconds
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, 10)),
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Mean loss of a batch."""
        started = time.monotonic()
        loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
        time.sleep(max(0.0, self.step_seconds - (time.monotonic() - started)))
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Loss and accuracy."""
        scores = self.layers(batch[0])
        self.log("loss", functional.cross_entropy(scores, batch[1]))
        self.log("accuracy", (scores.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main() -> None:
    """Train and say what has been learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="shortest time of a step")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels))
    train, test = random_split(digits, [0.8, 0.2], torch.Generator().manual_seed(0))
    loader = DataLoader(train, batch_size=32, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=arguments.epochs, **quiet)
    trainer.fit(Digits(arguments.step_seconds), loader, DataLoader(test, batch_size=len(test)))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}, flush=True)


if __name__ == "__main__":
    main()
