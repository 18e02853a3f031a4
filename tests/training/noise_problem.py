"""A linear regression of which the gradient noise scale is known.

Inputs x are standard normal in D dimensions, targets y are x·w* + e with e ~ N(0, SIGMA²), and the loss is
(x·w - y)² / 2. With d = w - w*, the gradient of a sample is x (x·d - e), and its mean is d. For normal x,
E|x|²(x·d)² = (D + 2)|d|². So |G|² = |d|² and tr(S) = (D + 1)|d|² + D SIGMA².
"""

from __future__ import annotations

import zlib

import torch
from torch import nn

from malletrain.client.noise_estimate import SquareNorms

SIZES = ((12, 5, 8), (9, 7, 4))
"""Samples of each pass, by rank."""


class Regression:
    """The problem, at weights that are `DISTANCE` from the best ones."""

    D = 12
    SIGMA = 1.0
    DISTANCE = 1.0

    @property
    def noise_scale(self) -> float:
        """tr(S) / |G|², in samples."""
        return ((self.D + 1) * self.DISTANCE**2 + self.D * self.SIGMA**2) / self.DISTANCE**2

    def model(self) -> nn.Sequential:
        """One linear layer in a container, so that FSDP2 has two modules."""
        model = nn.Sequential(nn.Linear(self.D, 1, bias=False))
        with torch.no_grad():
            model[0].weight.fill_(self.DISTANCE / self.D**0.5)  # the best weights are 0
        return model

    def samples(self, count: int, seed: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs of shape (count, D) and targets of shape (count, 1)."""
        generator = torch.Generator().manual_seed(zlib.crc32(repr(seed).encode()))
        inputs = torch.randn(count, self.D, generator=generator)
        return inputs, self.SIGMA * torch.randn(count, 1, generator=generator)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean over the samples."""
        return (outputs - targets).square().mean() / 2

    def sample_gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The gradient of each sample, of shape (count, D)."""
        weights = torch.full((self.D, 1), self.DISTANCE / self.D**0.5)
        return inputs * (inputs @ weights - targets)

    def norms(self, first: list[torch.Tensor], all_parts: list[torch.Tensor]) -> dict[str, float]:
        """Estimates of |G|² and tr(S) from the gradients of samples, by the definition.

        Args:
            first: Those of each worker's first pass.
            all_parts: Those of all passes of all workers.
        """
        small = [float(part.mean(0).square().sum()) for part in first]
        inverse = sum(1 / len(part) for part in first) / len(first)
        big = torch.cat(all_parts)
        norms = SquareNorms(sum(small) / len(small), 1 / inverse, float(big.mean(0).square().sum()), float(len(big)))
        return {"signal": norms.signal, "noise": norms.noise}


PROBLEM = Regression()
