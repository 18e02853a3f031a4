"""A network whose sums are exact in float32, so that their order does not matter.

Inputs and targets are whole numbers, and the weights are rounded to eighths between -1 and 1 after each step. Products
and sums of them, forwards and backwards, then have less than 24 binary digits: none of them is rounded. The optimizer
works on each number by itself, so AdamW may round as it likes: equal gradients lead to equal bits.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

PARTS = 8
"""A weight is a multiple of one part in so many."""
RATE = 0.1
"""Learning rate of AdamW: a step moves most weights to the next multiple."""


def network(width: int) -> nn.Sequential:
    """Two layers, whose rows can't be divided evenly among 2, 3 and 4 workers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, width), nn.ReLU(), nn.Linear(width, 3))
    round_weights(model)
    return model


def data(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(-1, 2, (size, 7), generator=generator).float()
    return inputs, torch.randint(-2, 3, (size, 3), generator=generator).float()


def loss_of(outputs: torch.Tensor, targets: torch.Tensor, workers: int) -> torch.Tensor:
    """Half the sum of the squares, not their mean: a division may round.

    Workers average their gradients, so each one's loss is multiplied by their number, which the average undoes exactly.
    """
    return (outputs - targets).square().sum() * (workers / 2)


@torch.no_grad()
def round_weights(model: nn.Module) -> None:
    """Round each weight, or this worker's part of it."""
    for parameter in model.parameters():
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        own.mul_(PARTS).round_().clamp_(-PARTS, PARTS).div_(PARTS)
