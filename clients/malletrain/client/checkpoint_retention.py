"""How many checkpoints are kept, and how long a save takes by what the last ones took. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.client.warn_once import in_words

_SAVES = 8


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """Which checkpoints are kept. The newest complete one always is.

    Attributes:
        count: Most checkpoints, at least 1.
        max_bytes: Most bytes of all together; None: no limit.
    """

    count: int = 2
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the figures, under the names that trainings give them.

        Raises:
            ValueError: one is out of its range.
        """
        if not _is_at_least_one(self.count):
            raise ValueError(f"checkpoints_kept: expected a whole number, at least 1, got {self.count!r}")
        if self.max_bytes is not None and not _is_at_least_one(self.max_bytes):
            raise ValueError(
                f"max_checkpoint_bytes: expected a whole number of bytes, at least 1, or None, got {self.max_bytes!r}"
            )

    def count_kept(self, sizes: Iterable[int]) -> int:
        """How many of the newest checkpoints are kept.

        Args:
            sizes: Their sizes in bytes, the newest first.
        """
        kept = total = 0
        for size in sizes:
            total += size
            if kept and (kept >= self.count or (self.max_bytes is not None and total > self.max_bytes)):
                break
            kept += 1
        return kept


def _is_at_least_one(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class SaveRate:
    """How fast the last saves were: their bytes by their seconds. A slow one counts for as long as it took."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._saves: deque[tuple[int, float]] = deque(maxlen=_SAVES)

    def note(self, size: int, seconds: float) -> None:
        """Take over a save: its size in bytes, and how long it took until it was on disk."""
        if size > 0 and seconds > 0:
            self._saves.append((size, seconds))

    @property
    def bytes_per_second(self) -> float | None:
        """The rate; None before the first save."""
        seconds = sum(seconds for _, seconds in self._saves)
        return sum(size for size, _ in self._saves) / seconds if seconds else None

    def too_slow(self, size: int, seconds_left: float | None) -> str:
        """Why a save of a size in bytes can't be done in the time that is left; empty: it can, or it is not known."""
        expected = self.expected_seconds(size)
        if expected is None or seconds_left is None or expected <= seconds_left:
            return ""
        return (
            f"{in_words(size)} take about {expected:.1f} s ({in_words(size / expected)}/s),"
            f" and {max(0.0, seconds_left):.1f} s are left"
        )

    def expected_seconds(self, size: int) -> float | None:
        """How long a save of a size in bytes takes; None before the first save."""
        rate = self.bytes_per_second
        return size / rate if rate else None
