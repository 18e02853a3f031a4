"""Which samples a worker trains with: one sample counter determines them, for any number of workers. Pure.

A global batch is divided among workers, and each worker's part into passes that fit into its memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BatchPartition:
    """A global batch, divided among workers.

    Attributes:
        shares: Samples of one optimizer step by worker; they differ by at most 1.
        micro_steps: Forward and backward passes in one optimizer step, the same number for all workers.
        wanted: The global batch that was asked for, in samples.
    """

    shares: tuple[int, ...]
    micro_steps: int
    wanted: int

    @property
    def global_batch(self) -> int:
        """Samples of one optimizer step over all workers."""
        return sum(self.shares)

    def span(self, rank: int) -> tuple[int, int]:
        """A worker's part of the global batch: index of its first sample and number of samples."""
        return sum(self.shares[:rank]), self.shares[rank]

    def micro_batches(self, rank: int) -> tuple[int, ...]:
        """Sizes of a worker's micro-batches; they differ by at most 1."""
        return _split_evenly(self.shares[rank], self.micro_steps)

    def weight(self, samples: int) -> float:
        """Factor for the mean loss of a micro-batch.

        Each worker adds up the gradients of its micro-batches, and the sums are averaged over the workers. With this
        factor the result is the gradient of the mean loss over the global batch, even if shares differ.

        Args:
            samples: Size of the micro-batch.
        """
        return samples * len(self.shares) / self.global_batch


def partition_per_worker(batch_per_worker: int, workers: int, micro_steps: int = 1) -> BatchPartition:
    """A global batch that grows with the workers: `micro_steps` passes of `batch_per_worker` samples each."""
    share = batch_per_worker * micro_steps
    return BatchPartition((share,) * workers, micro_steps, share * workers)


def partition_batch(reference_batch: int, batch_per_worker: int, workers: int) -> BatchPartition:
    """Divide a global batch of constant size among workers.

    Every worker makes the same number of passes: the fewest for which no micro-batch exceeds `batch_per_worker`. If the
    batch can't be divided evenly, the first workers take one sample more. The global batch is exact except in these
    cases: With more workers than samples, each worker takes one sample. With micro-batches of one sample, a worker
    whose share is smaller than the number of passes takes one sample per pass.

    Args:
        reference_batch: The global batch in samples, at least 1.
        batch_per_worker: Most samples in one pass of a worker, at least 1.
        workers: Number of workers, at least 1.

    Raises:
        ValueError: an argument is below 1.
    """
    for name, value in (
        ("reference_batch", reference_batch),
        ("batch_per_worker", batch_per_worker),
        ("workers", workers),
    ):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    micro_steps = math.ceil(math.ceil(reference_batch / workers) / batch_per_worker)
    shares = tuple(max(share, micro_steps) for share in _split_evenly(reference_batch, workers))
    return BatchPartition(shares, micro_steps, reference_batch)


def _split_evenly(total: int, parts: int) -> tuple[int, ...]:
    least, more = divmod(total, parts)
    return tuple(least + (part < more) for part in range(parts))


Permute = Callable[[int, int], Sequence[int]]


def shuffle_samples(size: int, seed: int) -> Sequence[int]:
    """A permutation of range(size) that depends on the seed only."""
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return order


class EpochOrder:
    """An endless order of samples: a new permutation for each epoch.

    Sample number i of the training (from 0) is the same for every worker and scale. Over any sequence of scales each
    sample of an epoch is therefore used exactly once.

    Attributes:
        size: Samples in the dataset.
        seed: The seed of the order.
    """

    def __init__(self, size: int, seed: int = 0, permute: Permute = shuffle_samples) -> None:
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
        self.size = size
        self.seed = seed
        self._permute = permute
        self._epochs: dict[int, Sequence[int]] = {}

    def span(self, start: int, count: int) -> list[int]:
        """Dataset indices of the samples number `start` to `start + count` of the training."""
        return [self._epoch(number // self.size)[number % self.size] for number in range(start, start + count)]

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
            self._epochs[epoch] = self._permute(self.size, self.seed * 1_000_003 + epoch)
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


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A worker's micro-batch.

    Attributes:
        first: Number in the training of its first sample; those of the others follow.
        indices: Their dataset indices.
    """

    first: int
    indices: list[int]

    @property
    def end(self) -> int:
        """Number in the training of the sample after its last one."""
        return self.first + len(self.indices)

    def numbered(self) -> Iterator[tuple[int, int]]:
        """Number in the training and dataset index of each sample."""
        return enumerate(self.indices, start=self.first)


@dataclass(frozen=True, slots=True)
class SpanStart:
    """From where a worker goes on.

    Attributes:
        position: Samples processed so far by all workers together.
        share: The worker's share.
        until: The iteration ends when the position has reached this number of samples; None: never.
    """

    position: int
    share: WorkerShare
    until: int | None


def spans_from(start: SpanStart) -> Iterator[range]:
    """Numbers in the training of the samples of one micro-batch after the other."""
    position = start.position
    while start.until is None or position < start.until:
        yield from micro_spans(position, start.share)
        position += start.share.partition.global_batch


def micro_spans(position: int, share: WorkerShare) -> list[range]:
    """Numbers in the training of the samples of a worker's micro-batches of the next global batch.

    Args:
        position: Samples processed so far by all workers together.
        share: The worker's share.
    """
    first = position + share.partition.span(share.rank)[0]
    spans = []
    for size in share.partition.micro_batches(share.rank):
        spans.append(range(first, first + size))
        first += size
    return spans


class ElasticBatches:
    """A worker's batches from the present position on, for `DataLoader(batch_sampler=...)`.

    Each `iter()` begins at the present position and scale. A training function that is called again after each rescale
    creates its iterator there, and so continues after the last committed batch. Batches that a data loader has
    prefetched do not count: the position is that of the training.

    Attributes:
        order: The order of samples.
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
        self.order = order
        self._position = position
        self._share = share
        self._until = until

    def __iter__(self) -> Iterator[list[int]]:
        """Dataset indices of one micro-batch after the other.

        Raises:
            RuntimeError: there has been a rescale or a rollback; create a new iterator.
        """
        return (batch.indices for batch in self.numbered())

    def start(self) -> SpanStart:
        """From where an iteration would begin now."""
        return SpanStart(self._position(), self._share(), self._until)

    def numbered(self) -> Iterator[NumberedBatch]:
        """One micro-batch after the other.

        Raises:
            RuntimeError: there has been a rescale or a rollback; create a new iterator.
        """
        # Read here: the body of a generator begins to run with the first batch only.
        return self._batches(self._position(), self._share())

    def _batches(self, position: int, share: WorkerShare) -> Iterator[NumberedBatch]:
        while self._until is None or position < self._until:
            for batch in micro_batches(self.order, position, share):
                if self._share() != share:
                    raise RuntimeError("ElasticBatches: the scale has changed, make a new iterator after each rescale")
                yield batch
            position += share.partition.global_batch


def plain_batches(order: EpochOrder, batch: int, position: int = 0, until: int | None = None) -> ElasticBatches:
    """The batches of a training in one process, without the helper for elastic trainings.

    Args:
        order: The order of samples.
        batch: Samples in a batch.
        position: Samples processed so far, e.g. as a checkpoint says.
        until: The iteration ends when so many samples have been handed out; None: never.
    """
    share = WorkerShare(0, 0, partition_per_worker(batch, 1))
    return ElasticBatches(order, lambda: position, lambda: share, until)


class Followed(Protocol):
    """What batches follow: a training."""

    @property
    def order(self) -> EpochOrder:
        """The order of samples."""

    @property
    def samples(self) -> int:
        """Samples processed so far by all workers together."""

    @property
    def share(self) -> WorkerShare:
        """This worker's share of each global batch."""


class EpochBatches:
    """A worker's batches from the present position to the end of the epoch, for frameworks whose loops have epochs.

    An epoch ends with the first global batch that reaches a multiple of the dataset's size. That batch may contain the
    first samples of the next epoch, which that one then leaves out: no sample is skipped or used twice.
    """

    def __init__(self, training: Callable[[], Followed], until: int | None = None) -> None:
        """Follow a training, which must exist when an iteration begins.

        Args:
            training: Returns it.
            until: An iteration ends as well when the position has reached this number of samples; None: never.
        """
        self._training = training
        self._until = until

    def __iter__(self) -> Iterator[list[int]]:
        """Dataset indices of one micro-batch after the other."""
        training = self._training()
        size = training.order.size
        end = (training.samples // size + 1) * size
        until = end if self._until is None else min(end, self._until)
        return iter(ElasticBatches(training.order, lambda: training.samples, lambda: training.share, until))


def micro_batches(order: EpochOrder, position: int, share: WorkerShare) -> list[NumberedBatch]:
    """A worker's micro-batches of the next global batch.

    Args:
        order: The order of samples.
        position: Samples processed so far by all workers together.
        share: The worker's share.
    """
    return [NumberedBatch(span.start, order.span(span.start, len(span))) for span in micro_spans(position, share)]


class WorkerSampler:
    """Selects this worker's samples of each global batch.

    Attributes:
        order: The order of samples.
        share: This worker's share. It changes with every rescale and rollback, and is not set before the first one.
    """

    share: WorkerShare

    def __init__(
        self, order: EpochOrder, batch_per_worker: int, constant_batch: int | None, micro_steps: int = 1
    ) -> None:
        """Call `set_scale` before use.

        Args:
            order: The order of samples, the same for all workers.
            batch_per_worker: Samples per worker and pass.
            constant_batch: Global batch in samples that is kept by gradient accumulation; None: it grows with the
                workers.
            micro_steps: Passes of a worker in one step, where the global batch grows with the workers.
        """
        self.order = order
        self._micro_steps = micro_steps
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
            partition = partition_per_worker(self._batch_per_worker, workers, self._micro_steps)
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
        return micro_batches(self.order, samples, self.share)[0].indices

    def passes(self, samples: int) -> Iterator[tuple[list[int], float]]:
        """Dataset indices of each pass of this worker for the next global batch, with the factor for its mean loss.

        Args:
            samples: The sample counter.
        """
        for batch in micro_batches(self.order, samples, self.share):
            yield batch.indices, self.partition.weight(len(batch.indices))
