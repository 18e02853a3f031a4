"""What a source of idle nodes is to the service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from malletrain.runtime.errors import MalleTrainError


class SourceError(MalleTrainError):
    """A source can't tell now which nodes are idle; it is asked again later."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The whole picture at one instant.

    Attributes:
        time: When this picture came to be, in seconds since the epoch.
        idle: Each idle node with the time since when it is idle, in seconds since the epoch. The time of a node
            changes only when its fragment does.
        ended: The source has nothing more to tell: this picture stays.
    """

    time: float
    idle: Mapping[str, float]
    ended: bool = False


class Source(Protocol):
    """Tells which nodes are idle."""

    def order(self) -> Sequence[str]:
        """All names that are known beforehand, in the order in which people expect them."""

    def past_lengths(self) -> Sequence[float]:
        """Seconds that idle fragments lasted which ended before the first observation, oldest first."""

    def observations(self) -> AsyncIterator[Observation]:
        """The present picture, then every change; ends after an observation that says `ended`, if ever.

        Raises:
            SourceError: the source can't be read now.
            OSError: a file or program of the source fails.
        """

    def close(self) -> None:
        """Let go of what the source keeps, at a graceful end."""
