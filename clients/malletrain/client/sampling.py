"""Which samples belong to a global batch: one counter decides, whatever the number of workers. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from malletrain.client.learning_rate import Accumulation

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


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker's share of the samples depends on, besides the position.

    Attributes:
        generation: Changes with every rescale and rollback.
        rank: The worker's rank.
        division: How the global batch is divided.
    """

    generation: int
    rank: int
    division: Accumulation


class ElasticBatches:
    """A worker's batches from the present position on, for `DataLoader(batch_sampler=...)`.

    Each `iter()` begins at the present position and at the present scale, so that a training function which is called
    anew after each rescale, and makes its iterator there, goes on where the committed history ends. What a data
    loader has fetched ahead is not counted: the position is that of the training.
    """

    def __init__(
        self,
        order: EpochOrder,
        position: Callable[[], int],
        place: Callable[[], Place],
        until: int | None = None,
    ) -> None:
        """Follow a training.

        Args:
            order: The order of samples, the same for all workers.
            position: Samples processed so far, by all workers together.
            place: This worker's place.
            until: The iteration ends when the position has reached this number of samples; None: never.
        """
        self._order = order
        self._position = position
        self._place = place
        self._until = until

    def __iter__(self) -> Iterator[list[int]]:
        """Dataset indices of one micro-batch after the other.

        Raises:
            RuntimeError: a rescale or a rollback has come in between; make a new iterator.
        """
        # Not in the generator below, whose first line runs at the first batch.
        return self._batches(self._position(), self._place())

    def _batches(self, position: int, place: Place) -> Iterator[list[int]]:
        while self._until is None or position < self._until:
            for indices in micro_batches(self._order, position, place):
                if self._place() != place:
                    raise RuntimeError("ElasticBatches: the scale has changed, make a new iterator after each rescale")
                yield indices
            position += place.division.global_batch


def micro_batches(order: EpochOrder, position: int, place: Place) -> list[list[int]]:
    """Dataset indices of a worker's micro-batches of the next global batch.

    Args:
        order: The order of samples.
        position: Samples processed so far, by all workers together.
        place: The worker's place.
    """
    offset, count = place.division.span(place.rank)
    indices = order.span(position + offset, count)
    batches = []
    for size in place.division.micro_batches(place.rank):
        batches.append(indices[:size])
        indices = indices[size:]
    return batches
