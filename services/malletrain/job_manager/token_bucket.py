"""A token bucket: how often something may happen on average, and how often at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Each call takes one token; tokens come back at a constant rate, up to the capacity.

    Attributes:
        per_second: Tokens that come back each second, above 0.
        capacity: Most tokens that the bucket holds, at least 1: so many calls may come at once.
        tokens: Tokens that it held at `time`.
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

    def take(self) -> TokenBucket | None:
        """The bucket without one token; None if it does not hold one."""
        return replace(self, tokens=self.tokens - 1.0) if self.tokens >= 1.0 else None

    @property
    def wait_seconds(self) -> float:
        """How long until it holds one token; 0 if it does."""
        return max(0.0, (1.0 - self.tokens) / self.per_second)
