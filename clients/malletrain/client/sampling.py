"""Which samples a worker trains with: one sample counter determines them, for any number of workers. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from malletrain.client.batch_partition import BatchPartition, partition_batch, partition_per_worker

Permute = Callable[[int, int], Sequence[int]]


def shuffled(size: int, seed: int) -> Sequence[int]:
    """A permutation of range(size) that depends on the seed only."""
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return order


class EpochOrder:
    """An endless order of samples: a new permutation for each epoch.

    Sample number i of the training (from 0) is the same for every worker and scale. Over any sequence of scales each
    sample of an epoch is therefore used exactly once.
    """

    def __init__(self, size: int, seed: int = 0, permute: Permute = shuffled) -> None:
        """Order a dataset.

        Args:
            size: Samples in the dataset, at least 1.
            seed: The same seed gives the same order.
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
        """Dataset indices of one worker's part of the next global batch.

        Args:
            position: Samples processed so far by all workers together.
            batch: Samples per worker.
            rank: The worker's rank.
        """
        return self.span(position + rank * batch, batch)

    def _epoch(self, epoch: int) -> Sequence[int]:
        if epoch not in self._epochs:
            # A batch can lie in two epochs: the neighbours are kept.
            self._epochs = {known: order for known, order in self._epochs.items() if abs(known - epoch) <= 1}
            self._epochs[epoch] = self._permute(self._size, self._seed * 1_000_003 + epoch)
        return self._epochs[epoch]


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What a worker's samples depend on, besides the sample counter.

    Attributes:
        generation: Changes with every rescale and rollback.
        rank: The worker's rank.
        partition: How the global batch is divided.
    """

    generation: int
    rank: int
    partition: BatchPartition


class ElasticBatches:
    """A worker's batches from the present position on, for `DataLoader(batch_sampler=...)`.

    Each `iter()` begins at the present position and scale. A training function that is called again after each rescale
    creates its iterator there, and so continues after the last committed batch. Batches that a data loader has
    prefetched do not count: the position is that of the training.
    """

    def __init__(
        self,
        order: EpochOrder,
        position: Callable[[], int],
        share: Callable[[], WorkerShare],
        until: int | None = None,
    ) -> None:
        """Follow a training.

        Args:
            order: The order of samples, the same for all workers.
            position: Returns the samples processed so far by all workers together.
            share: Returns this worker's share.
            until: The iteration ends when the position has reached this number of samples; None: never.
        """
        self._order = order
        self._position = position
        self._share = share
        self._until = until

    def __iter__(self) -> Iterator[list[int]]:
        """Dataset indices of one micro-batch after the other.

        Raises:
            RuntimeError: there has been a rescale or a rollback; create a new iterator.
        """
        # Read here: the body of a generator begins to run with the first batch only.
        return self._batches(self._position(), self._share())

    def _batches(self, position: int, share: WorkerShare) -> Iterator[list[int]]:
        while self._until is None or position < self._until:
            for indices in micro_batches(self._order, position, share):
                if self._share() != share:
                    raise RuntimeError("ElasticBatches: the scale has changed, make a new iterator after each rescale")
                yield indices
            position += share.partition.global_batch


def micro_batches(order: EpochOrder, position: int, share: WorkerShare) -> list[list[int]]:
    """Dataset indices of a worker's micro-batches of the next global batch.

    Args:
        order: The order of samples.
        position: Samples processed so far by all workers together.
        share: The worker's share.
    """
    offset, count = share.partition.span(share.rank)
    indices = order.span(position + offset, count)
    batches = []
    for size in share.partition.micro_batches(share.rank):
        batches.append(indices[:size])
        indices = indices[size:]
    return batches


class WorkerSampler:
    """Selects this worker's samples of each global batch.

    Attributes:
        order: The order of samples.
        share: This worker's share. It changes with every rescale and rollback, and is not set before the first one.
    """

    share: WorkerShare

    def __init__(self, order: EpochOrder, batch_per_worker: int, constant_batch: int | None) -> None:
        """Call `set_scale` before use.

        Args:
            order: The order of samples, the same for all workers.
            batch_per_worker: Samples per worker and pass.
            constant_batch: Global batch in samples that is kept by gradient accumulation; None: it grows with the
                workers.
        """
        self.order = order
        self._batch_per_worker = batch_per_worker
        self._constant_batch = constant_batch
        self._generation = 0

    @property
    def partition(self) -> BatchPartition:
        """How the global batch is divided."""
        return self.share.partition

    def set_scale(self, rank: int, workers: int) -> None:
        """Take a rank among a number of workers."""
        self._generation += 1
        if self._constant_batch is None:
            partition = partition_per_worker(self._batch_per_worker, workers)
        else:
            partition = partition_batch(self._constant_batch, self._batch_per_worker, workers)
        self.share = WorkerShare(self._generation, rank, partition)

    def indices(self, samples: int) -> list[int]:
        """Dataset indices of this worker's part of the next global batch.

        Args:
            samples: The sample counter.

        Raises:
            RuntimeError: the global batch is kept constant, so that the part may take several passes.
        """
        if self._constant_batch is not None:
            raise RuntimeError("next_indices: shares are uneven with hold_batch; train with micro_batches()")
        return micro_batches(self.order, samples, self.share)[0]

    def passes(self, samples: int) -> Iterator[tuple[list[int], float]]:
        """Dataset indices of each pass of this worker for the next global batch, with the factor for its mean loss.

        Args:
            samples: The sample counter.
        """
        for indices in micro_batches(self.order, samples, self.share):
            yield indices, self.partition.weight(len(indices))
