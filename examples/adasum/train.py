"""Gradients combined by Adasum instead of averaged, elastic with torch.distributed: digits of scikit-learn.

Runs under MalleTrain with the backend torchrun, and as a plain script: `python train.py --samples 20000`.

Adasum (Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, arXiv:2006.02924) adds
gradients that point into different directions and averages those that point into the same one, layer by layer. A
learning rate that fits one worker then fits any number of them, so that nothing is scaled when nodes come and go.
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from malletrain.client.distributed import ElasticTraining, init


def adasum(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The adaptive sum of two gradients of one layer, as flat tensors (equation 2 of the paper)."""
    product = torch.dot(first, second)
    squares = torch.dot(first, first), torch.dot(second, second)
    if min(squares) == 0:
        return first + second
    return (1 - product / (2 * squares[0])) * first + (1 - product / (2 * squares[1])) * second


def adasum_of(gradients: list[torch.Tensor]) -> torch.Tensor:
    """That of all workers: in pairs, then pairs of these, in the order of ranks (section 3.4)."""
    while len(gradients) > 1:
        paired = [adasum(*gradients[first : first + 2]) for first in range(0, len(gradients) - 1, 2)]
        gradients = paired + gradients[len(gradients) - len(gradients) % 2 :]
    return gradients[0]


def combine(group: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel: exchanges a bucket of gradients and combines them by layer."""
    del group
    own = bucket.buffer()
    exchanged = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(exchanged, own)
    sizes = [gradient.numel() for gradient in bucket.gradients()]
    layers = zip(*(whole.split(sizes) for whole in exchanged), strict=True)
    combined: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    combined.set_result(torch.cat([adasum_of(list(layer)) for layer in layers]))
    return combined


def main() -> None:
    """Train, evaluate, say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=60_000, help="samples to train on, all workers together")
    parser.add_argument("--batch-per-worker", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="the same for any number of workers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    train_x, test_x, train_y, test_y = images[:1437], images[1437:], labels[:1437], labels[1437:]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate)
    init()
    # Without a reference batch the learning rate stays as it is.
    training = ElasticTraining(model, optimizer, dataset_size=len(train_x), batch_per_worker=arguments.batch_per_worker)
    training.model.register_comm_hook(None, combine)

    @training.run
    def train() -> None:
        for indices in training.batches(arguments.samples):
            training.optimizer.zero_grad()
            functional.cross_entropy(training.model(train_x[indices]), train_y[indices]).backward()
            training.step()

    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    if training.rank == 0:
        print(f"done: {training.samples} samples, test accuracy {accuracy:.4f}", flush=True)
    training.finish({"accuracy": accuracy})


if __name__ == "__main__":
    main()
