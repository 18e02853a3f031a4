"""An architecture drawn from NAS-Bench-101's space, on random images, elastic with Horovod or torch.distributed.

Runs under MalleTrain with either backend, under torchrun or horovodrun, and as a plain script:
`python train.py --architecture 7 --samples 2000`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

from malletrain.client.elastic import ElasticTraining, init

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.nasbench.cost import SMALL, Size
from examples.nasbench.network import Network
from examples.nasbench.pace import paced_seconds
from examples.nasbench.space import sample_cell

_IMAGES = 256


def parse_arguments() -> argparse.Namespace:
    """What one may choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", type=int, default=0, help="seed of the cell's drawing")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, images and order")
    parser.add_argument("--samples", type=int, default=20_000, help="samples to train on, all workers together")
    parser.add_argument("--batch-per-worker", type=int, default=8, help="samples per worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="learning rate for one worker's batch")
    parser.add_argument("--width", type=int, default=SMALL.width, help="channels of the first stack")
    parser.add_argument("--cells", type=int, default=SMALL.cells, help="cells in each of the three stacks")
    parser.add_argument("--pixels", type=int, default=16, help="height and width of an image")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=0.0,
        help="shortest time of a step on one worker: virtual nodes share this machine's cores, so a step is paced as "
        "on an accelerator of its own",
    )
    parser.add_argument(
        "--exchange-seconds",
        type=float,
        default=0.0,
        help="what the exchange of gradients in a ring of very many workers adds to that",
    )
    return parser.parse_args()


def random_images(pixels: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N x 3 x pixels x pixels) and labels; the same seed gives the same."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(_IMAGES, 3, pixels, pixels, generator=generator)
    return images, torch.randint(SMALL.classes, (_IMAGES,), generator=generator)


def main() -> None:
    """Train, say what came of it."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    images, labels = random_images(arguments.pixels, arguments.seed)
    cell = sample_cell(random.Random(arguments.architecture))
    model = Network(cell, Size(arguments.width, SMALL.stacks, arguments.cells))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=0.9)
    init()
    training = ElasticTraining(
        model,
        optimizer,
        dataset_size=_IMAGES,
        batch_per_worker=arguments.batch_per_worker,
        reference_batch=arguments.batch_per_worker,
        seed=arguments.seed,
    )
    if training.rank == 0:
        print(f"architecture {arguments.architecture}: {cell}", flush=True)

    @training.run
    def train() -> None:
        model.train()
        due = time.monotonic()
        while training.samples < arguments.samples:
            indices = training.next_indices()
            training.optimizer.zero_grad()
            functional.cross_entropy(training.model(images[indices]), labels[indices]).backward()
            wanted = paced_seconds(arguments.step_seconds, arguments.exchange_seconds, training.workers)
            # By a fixed beat: what this machine really takes for a step is part of it.
            due = max(due + wanted, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            training.step()

    model.eval()
    with torch.no_grad():
        loss = functional.cross_entropy(model(images), labels).item()
    if training.rank == 0:
        print(f"done: {training.samples} samples, loss {loss:.4f}", flush=True)
    training.finish({"loss": loss})


if __name__ == "__main__":
    main()
