"""A small convolutional network on scikit-learn's digits, elastic with Horovod or torch.distributed, on a GPU or a CPU.

Runs under MalleTrain with either backend, under torchrun or horovodrun, and as a plain script:
`python train.py --samples 20000`.
"""

from __future__ import annotations

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from malletrain.client.elastic import ElasticTraining, init, worker_device


def parse_arguments() -> argparse.Namespace:
    """What one may choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=60_000, help="samples to train on, all workers together")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--batch-per-worker", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--reference-batch", type=int, default=64, help="global batch that the learning rate fits")
    parser.add_argument("--learning-rate", type=float, default=0.02, help="learning rate at the reference batch")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and order")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=0.0,
        help="shortest time of a step: virtual nodes share this machine's cores, so a step is paced as on its own node",
    )
    return parser.parse_args()


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images, test images (N x 1 x 8 x 8), training labels, test labels; a fifth is for testing."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    train_x, test_x = (torch.tensor(part, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 for part in parts[:2])
    train_y, test_y = (torch.tensor(part) for part in parts[2:])
    return train_x, test_x, train_y, test_y


def network(width: int) -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 10),
    )


def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Accuracy and mean loss."""
    model.eval()
    with torch.no_grad():
        scores = model(images)
        accuracy = (scores.argmax(1) == labels).float().mean().item()
        return accuracy, functional.cross_entropy(scores, labels).item()


def main() -> None:
    """Train, evaluate, say so."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    device = worker_device()
    train_x, test_x, train_y, test_y = (part.to(device) for part in digits())
    model = network(arguments.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=0.9)
    init()
    training = ElasticTraining(
        model,
        optimizer,
        dataset_size=len(train_x),
        batch_per_worker=arguments.batch_per_worker,
        reference_batch=arguments.reference_batch,
        seed=arguments.seed,
    )

    @training.run
    def train() -> None:
        model.train()
        while training.samples < arguments.samples:
            started = time.monotonic()
            indices = training.next_indices()
            training.optimizer.zero_grad()
            loss = functional.cross_entropy(training.model(train_x[indices]), train_y[indices])
            loss.backward()
            training.step()
            crossed = training.samples // 10_000 != (training.samples - training.global_batch) // 10_000
            if crossed and training.rank == 0:
                print(f"{training.samples} samples, {training.workers} workers, loss {loss.item():.4f}", flush=True)
            time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - started)))

    # The plain model: forward through `training.model` may be a joint act of all workers.
    accuracy, loss = evaluate(model, test_x, test_y)
    if training.rank == 0:
        print(f"done: {training.samples} samples, test accuracy {accuracy:.4f}, test loss {loss:.4f}", flush=True)
    training.finish({"accuracy": accuracy, "loss": loss})


if __name__ == "__main__":
    main()
