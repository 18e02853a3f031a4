"""How a global batch is divided among workers, and each worker's part into passes that fit into its memory. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


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

    @property
    def exact(self) -> bool:
        """Whether the global batch has the size that was asked for."""
        return self.global_batch == self.wanted

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
