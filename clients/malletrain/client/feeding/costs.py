"""What preparing samples costs, as a feed has measured it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_REMEMBERED = 512.0
"""Samples on which a figure rests about: older ones count less and less."""
MIN_SAMPLES = 8
"""A figure is told once it rests on so many samples."""


@dataclass
class PreparingCosts:
    """CPU time of samples.

    Attributes:
        samples: How many have been prepared.
    """

    samples: int = 0
    _weight: float = 0.0
    _seconds: float = 0.0

    def add(self, cpu_seconds: float) -> None:
        """A sample has been prepared in so much CPU time, in seconds."""
        self.samples += 1
        kept = 1.0 - 1.0 / _REMEMBERED
        self._weight = self._weight * kept + 1.0
        self._seconds = self._seconds * kept + max(0.0, cpu_seconds)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of a sample; 0: not known yet."""
        return self._seconds / self._weight if self.samples >= MIN_SAMPLES else 0.0
