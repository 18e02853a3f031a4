"""A token bucket: how often something may happen on average, and how often at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Each job takes one token; tokens come back at a constant rate, up to the capacity.

    Attributes:
        per_second: Tokens that come back each second, above 0.
        capacity: Most tokens that the bucket holds, at least 1: so many may be taken at once.
        tokens: Tokens that it held at `time`; below 0 after more were taken than it can hold.
        time: In seconds of a clock that never goes back.
    """

    per_second: float
    capacity: float
    tokens: float
    time: float

    @classmethod
    def full(cls, per_second: float, capacity: float, now: float) -> TokenBucket:
        """A bucket with as many tokens as it holds."""
        return cls(per_second, capacity, capacity, now)

    def at(self, now: float) -> TokenBucket:
        """The bucket at a later time."""
        passed = max(0.0, now - self.time)
        tokens = min(self.capacity, self.tokens + passed * self.per_second)
        return replace(self, tokens=tokens, time=max(now, self.time))

    @property
    def is_full(self) -> bool:
        """Whether it holds as many tokens as it can."""
        return self.tokens >= self.capacity

    def without_tokens(self, count: int = 1) -> TokenBucket | None:
        """The bucket without so many tokens; None if it does not hold them.

        For more than it can hold it must be full; what is missing comes back before anything else can be taken.

        Args:
            count: How many, at least 1.
        """
        return replace(self, tokens=self.tokens - count) if self.tokens >= self._least(count) else None

    def wait_seconds(self, count: int = 1) -> float:
        """How long until so many tokens can be taken; 0 if they can."""
        return max(0.0, (self._least(count) - self.tokens) / self.per_second)

    def _least(self, count: int) -> float:
        return min(float(count), self.capacity)
