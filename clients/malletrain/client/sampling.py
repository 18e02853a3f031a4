"""Which samples belong to a global batch: one counter decides, whatever the number of workers. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Permute = Callable[[int, int], Sequence[int]]


def shuffled(size: int, seed: int) -> Sequence[int]:
    """A permutation of range(size) that depends on nothing but the seed."""
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return order


class EpochOrder:
    """An endless order of samples: a fresh permutation per epoch, one after the other.

    Sample number i of the training (from 0) is the same whoever asks, so that workers which agree on the counter of
    samples agree on everything: over any sequence of scales each sample of an epoch is seen exactly once.
    """

    def __init__(self, size: int, seed: int = 0, permute: Permute = shuffled) -> None:
        """Order a dataset.

        Args:
            size: Samples in the dataset, at least 1.
            seed: Same seed, same order.
            permute: Maps (size, seed of the epoch) to a permutation of range(size).

        Raises:
            ValueError: size is below 1.
        """
        if size < 1:
            raise ValueError(f"size: expected at least 1 sample, got {size}")
        self._size = size
        self._seed = seed
        self._permute = permute
        self._epochs: dict[int, Sequence[int]] = {}

    def span(self, start: int, count: int) -> list[int]:
        """Dataset indices of the samples number `start` to `start + count` of the training."""
        return [self._epoch(number // self._size)[number % self._size] for number in range(start, start + count)]

    def share(self, position: int, batch: int, rank: int) -> list[int]:
        """Dataset indices of one worker's share of the next global batch.

        Args:
            position: Samples processed so far, by all workers together.
            batch: Samples per worker.
            rank: The worker's rank.
        """
        return self.span(position + rank * batch, batch)

    def _epoch(self, epoch: int) -> Sequence[int]:
        if epoch not in self._epochs:
            # A batch can touch two epochs, never three that matter: keep the neighbours.
            self._epochs = {known: order for known, order in self._epochs.items() if abs(known - epoch) <= 1}
            self._epochs[epoch] = self._permute(self._size, self._seed * 1_000_003 + epoch)
        return self._epochs[epoch]
