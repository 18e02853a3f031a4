"""The training of `fsdp_trainer.py` in one process without FSDP: whole weights, a whole optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from malletrain.client.sampling import EpochOrder
from malletrain.client.training import permutation
from tests.training import exact_numbers
from tests.training.fsdp_trainer import BATCH, RATE, SIZE, WIDTH, data, network, tensors_of

Gradients = list[torch.Tensor]


class Unsharded:
    """One process that trains as the workers do, batch by batch.

    Attributes:
        model: The whole model.
    """

    def __init__(self, *, exact: bool) -> None:
        """Begin where the workers begin.

        Args:
            exact: Whether numbers are those of `exact_numbers.py`.
        """
        self._exact = exact
        self.model = exact_numbers.network(WIDTH) if exact else network(WIDTH)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=exact_numbers.RATE if exact else RATE)
        self._inputs, self._targets = exact_numbers.data(SIZE) if exact else data()
        self._order = EpochOrder(SIZE, 3, permutation)

    def indices(self, step: int) -> list[int]:
        """Dataset indices of a step's global batch."""
        return self._order.span(step * BATCH, BATCH)

    def gradients(self, indices: Sequence[int], workers: int = 1) -> Gradients:
        """Gradients of some samples at once, as one of so many workers has them."""
        self._optimizer.zero_grad()
        outputs, targets = self.model(self._inputs[indices]), self._targets[indices]
        exact = self._exact
        loss = exact_numbers.loss_of(outputs, targets, workers) if exact else nn.functional.mse_loss(outputs, targets)
        loss.backward()
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def apply(self, gradients: Gradients) -> list[torch.Tensor]:
        """Make a step with them; weights and optimizer after it."""
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        if self._exact:
            exact_numbers.round_weights(self.model)
        return [tensor.clone() for tensor in tensors_of(self.model, self._optimizer)]

    def step(self, number: int) -> list[torch.Tensor]:
        """A step with the whole batch at once."""
        return self.apply(self.gradients(self.indices(number)))

    def step_in_order_of_gloo(self, number: int, workers: int) -> list[torch.Tensor]:
        """A step that takes the samples of each worker apart, and adds up their gradients as Gloo does."""
        share, indices = BATCH // workers, self.indices(number)
        apart = [self.gradients(indices[rank * share : (rank + 1) * share], workers) for rank in range(workers)]
        return self.apply([in_order_of_gloo(same) for same in zip(*apart, strict=True)])


def in_order_of_gloo(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of the workers' gradients of a weight, added up as in Gloo's ring.

    The rows that belong to a worker go round the ring once: they begin at the worker before it, and reach it last.
    """
    workers = len(gradients)
    # As torch.chunk divides them, and with it FSDP.
    rows = -(-gradients[0].shape[0] // workers)
    mean = torch.empty_like(gradients[0])
    for owner in range(workers):
        span = slice(owner * rows, (owner + 1) * rows)
        total = gradients[(owner - 1) % workers][span]
        for distance in range(2, workers + 1):
            total = gradients[(owner - distance) % workers][span] + total
        mean[span] = total / workers
    return mean
