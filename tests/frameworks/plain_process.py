"""What `small_trainer` should learn: the same training in one plain process, without a framework."""

from __future__ import annotations

import torch
from torch import nn

from malletrain.client.sampling import EpochOrder
from malletrain.client.training import permutation
from tests.training.amp_trainer import BATCH, SIZE, data, network, optimizer_of, whole

CLOSE = 0.01
"""Largest difference of a weight: bfloat16 has three digits, and passes of other sizes round in another way."""


def reference(epochs: int, factor: float = 1.0) -> list[float]:
    """Weights of one process that makes one pass per step; its gradients have a factor."""
    model, (inputs, targets), order = network(), data(), EpochOrder(SIZE, 3, permutation)
    optimizer = optimizer_of(model)
    for samples in range(0, epochs * SIZE, BATCH):
        indices = order.span(samples, BATCH)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs[indices]), targets[indices])
        (factor * loss).backward()
        optimizer.step()
    return whole(model)


def farthest(ours: list[float], theirs: list[float]) -> float:
    """The largest difference."""
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
