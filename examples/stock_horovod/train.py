"""An Elastic Horovod script as in Horovod's documentation, with one line of MalleTrain's: `report`.

It learns scikit-learn's digits, and runs unchanged under `horovodrun`, where `report` does nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from malletrain.client import report

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batches-per-epoch", type=int, default=100)
parser.add_argument("--batches-per-commit", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32, help="samples per worker and batch")
parser.add_argument("--learning-rate", type=float, default=0.01, help="learning rate of one worker")
arguments = parser.parse_args()

images, labels = load_digits(return_X_y=True)
inputs = torch.tensor(images, dtype=torch.float32) / 16
targets = torch.tensor(labels)

torch.set_num_threads(1)
hvd.init()
torch.manual_seed(hvd.rank())

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def random_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels for one worker."""
    chosen = torch.randint(len(inputs), (arguments.batch_size,))
    return inputs[chosen], targets[chosen]


@hvd.elastic.run
def train(state: Any) -> None:
    """Train to the end of the last epoch, from where the state is."""
    for state.epoch in range(state.epoch, arguments.epochs):
        for state.batch in range(state.batch, arguments.batches_per_epoch):
            data, target = random_batch()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            report(arguments.batch_size * hvd.size())  # the one line: samples of this batch, over all workers
            if state.batch % arguments.batches_per_commit == 0:
                state.commit()
        state.batch = 0


def on_state_reset() -> None:
    """Fit the learning rate to the number of workers."""
    for group in optimizer.param_groups:
        group["lr"] = arguments.learning_rate * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])
train(state)

if hvd.rank() == 0:
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == targets).float().mean().item()
    print(f"accuracy {accuracy:.3f} after {arguments.epochs} epochs", flush=True)
