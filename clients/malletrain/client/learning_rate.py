"""The learning rate, or the batch, when the number of workers changes. Pure.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017, arXiv:1706.02677): with a k times
larger global batch, take a k times larger learning rate (section 2.1), and reach it gradually (section 2.2). The square
root in place of k keeps the variance of a step (Krizhevsky 2014, arXiv:1404.5997, section 5) and suits adaptive
optimizers such as Adam. The alternative is to hold the global batch by gradient accumulation and change no rate at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Rule = Literal["linear", "sqrt"]


def scaled_rate(reference_rate: float, reference_batch: int, batch: int, rule: Rule = "linear") -> float:
    """The learning rate for a global batch.

    Args:
        reference_rate: The rate that fits the reference batch.
        reference_batch: Global batch in samples, at least 1.
        batch: The global batch at hand in samples, at least 1.
        rule: "linear": in proportion to the batch. "sqrt": to its square root.

    Raises:
        ValueError: an argument is out of its range.
    """
    if reference_batch < 1:
        raise ValueError(f"reference_batch: expected at least 1 sample, got {reference_batch}")
    if batch < 1:
        raise ValueError(f"batch: expected at least 1 sample, got {batch}")
    if rule == "linear":
        return reference_rate * batch / reference_batch
    if rule == "sqrt":
        return reference_rate * math.sqrt(batch / reference_batch)
    raise ValueError(f"rule: expected 'linear' or 'sqrt', got {rule!r}")


@dataclass(frozen=True, slots=True)
class Ramp:
    """What the reference rate is multiplied by: from one factor to another over a number of samples, then constant.

    Attributes:
        since: The sample counter at which it begins.
        length: Its length in samples; 0: at once.
        start: The factor at its beginning.
        end: The factor at its end and from then on.
    """

    since: int = 0
    length: int = 0
    start: float = 1.0
    end: float = 1.0

    def factor(self, samples: int) -> float:
        """The factor when `samples` have been processed."""
        if samples >= self.since + self.length:
            return self.end
        return self.start + (self.end - self.start) * max(0, samples - self.since) / self.length

    def towards(self, factor: float, samples: int, warmup_samples: int) -> Ramp:
        """The ramp after a rescale: up gradually from the present factor, down at once; as it is if nothing changes.

        Args:
            factor: The factor that fits the new global batch.
            samples: The sample counter at the rescale.
            warmup_samples: Length of the way up in samples.
        """
        if factor == self.end and samples >= self.since:
            return self
        return Ramp(samples, warmup_samples, min(self.factor(samples), factor), factor)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """How a global batch of given size is divided among workers, and each share into steps that fit the memory.

    Attributes:
        shares: Samples of one optimizer step by worker; they differ by at most 1.
        micro_steps: Forward and backward passes of one optimizer step, the same for all workers.
        wanted: The global batch that was asked for.
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
        """Whether the global batch is the wanted one."""
        return self.global_batch == self.wanted

    def span(self, rank: int) -> tuple[int, int]:
        """A worker's share of the global batch: its first sample's number and its size."""
        return sum(self.shares[:rank]), self.shares[rank]

    def micro_batches(self, rank: int) -> tuple[int, ...]:
        """The sizes of a worker's micro-batches; they differ by at most 1."""
        return _even(self.shares[rank], self.micro_steps)

    def weight(self, samples: int) -> float:
        """What to multiply the mean loss of a micro-batch by.

        With it, the average over workers of the gradients that each has summed up is the gradient of the mean loss over
        the global batch, even if shares are uneven.

        Args:
            samples: Size of the micro-batch.
        """
        return samples * len(self.shares) / self.global_batch


def accumulation(reference_batch: int, batch_per_worker: int, workers: int) -> Accumulation:
    """Divide a global batch of constant size among workers.

    Every worker makes the same number of passes, the fewest with which no micro-batch exceeds `batch_per_worker`. The
    first workers take one sample more if the batch can't be divided evenly. The batch is always exact but for one case:
    with more workers than samples each takes one sample, and the global batch is the number of workers. Where a share
    has fewer samples than others need passes, which shares that differ by 1 can bring about only at micro-batches of
    one sample, the batch grows to one sample per worker and pass.

    Args:
        reference_batch: The global batch in samples, at least 1.
        batch_per_worker: The most samples that fit into one pass of a worker, at least 1.
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
    shares = tuple(max(share, micro_steps) for share in _even(reference_batch, workers))
    return Accumulation(shares, micro_steps, reference_batch)


def _even(total: int, parts: int) -> tuple[int, ...]:
    least, more = divmod(total, parts)
    return tuple(least + (part < more) for part in range(parts))
