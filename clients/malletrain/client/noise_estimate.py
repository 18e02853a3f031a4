"""The gradient noise scale, estimated from gradients of two batch sizes. Pure.

The gradient g_B of a batch of B samples has the expected square |G|² + tr(S) / B, where G is the gradient over all
data and S the covariance of the gradients of single samples. Measured at two batch sizes, that gives both (McCandlish
et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, appendix A.1), and phi = tr(S) / |G|².

Single estimates are very noisy, and a ratio of noisy figures is biased. So both are averaged over many steps first,
with weights that fall exponentially with age, and the ratio is taken of the averages.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

DECAY = 0.99
"""Factor of the weight of a measurement with each later one: some hundred of them count."""
MIN_MEASUREMENTS = 30
"""Before so many there is no estimate."""
RANGE = 1e4
"""An estimate is at least the batch divided by this and at most the batch times this: what lies beyond can't be
measured there, and makes no difference to the efficiency of batches near it."""


@dataclass(frozen=True, slots=True)
class SquareNorms:
    """Squares of the gradients' norms at two batch sizes, in one step.

    Attributes:
        small: Mean over the small batches.
        small_batch: Their size in samples; of unequal ones the harmonic mean.
        big: Of the gradient of the big batch, of which the small ones are parts.
        big_batch: Its size in samples, above `small_batch`.
    """

    small: float
    small_batch: float
    big: float
    big_batch: float

    @property
    def signal(self) -> float:
        """An unbiased estimate of |G|²; it may be negative."""
        return (self.big_batch * self.big - self.small_batch * self.small) / (self.big_batch - self.small_batch)

    @property
    def noise(self) -> float:
        """An unbiased estimate of tr(S); it may be negative."""
        return (self.small - self.big) / (1 / self.small_batch - 1 / self.big_batch)

    @property
    def usable(self) -> bool:
        """Whether there is anything to learn from it."""
        return 0 < self.small_batch < self.big_batch and math.isfinite(self.small + self.big)


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """What many steps come to.

    Attributes:
        signal: Sum of the estimates of |G|² with their weights.
        noise: Sum of those of tr(S).
        measurements: How many there were.
        batch: The newest big batch in samples.
    """

    signal: float = 0.0
    noise: float = 0.0
    measurements: int = 0
    batch: float = 0.0

    def after(self, norms: SquareNorms) -> NoiseEstimate:
        """The estimate with another step; the same one where it can't be used."""
        if not norms.usable:
            return self
        return NoiseEstimate(
            DECAY * self.signal + norms.signal, DECAY * self.noise + norms.noise, self.measurements + 1, norms.big_batch
        )

    @property
    def noise_scale(self) -> float | None:
        """phi in samples; None: not known yet.

        Where the mean of |G|² is not above 0, the noise is larger than can be measured, and phi is the greatest value.
        """
        if self.measurements < MIN_MEASUREMENTS:
            return None
        least, most = self.batch / RANGE, self.batch * RANGE
        if self.signal <= 0:
            return most
        return min(most, max(least, self.noise / self.signal))

    def state(self) -> dict[str, float]:
        """Its numbers, by name."""
        return asdict(self)


def between_steps(first: float, second: float, product: float, batch: float) -> SquareNorms:
    """The norms of two successive gradients as those of two halves of a batch of twice the size.

    As AdaptDL does where one worker makes one pass. Between the two the weights have moved: the estimate is biased by
    as much as the gradient has changed with that.

    Args:
        first: Square of the first one's norm.
        second: Square of the second one's.
        product: Their dot product.
        batch: Samples of each.
    """
    return SquareNorms((first + second) / 2, batch, (first + second + 2 * product) / 4, 2 * batch)
