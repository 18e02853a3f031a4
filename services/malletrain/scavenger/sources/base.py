"""What a source of idle nodes is to the service."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from malletrain.runtime.errors import MalleTrainError
from malletrain.scavenger.machine.observations import Observation


class SourceError(MalleTrainError):
    """A scheduler can't be asked, or refuses a request. The caller tries again later."""


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """Counts and times of one kind of query to a scheduler.

    Attributes:
        source: Name of the source, e.g. "slurm".
        query: Kind of query, e.g. "nodes".
        age_seconds: Age of the last good answer; infinite before the first.
        asked: Number of queries so far.
        failed: Number of them without a good answer.
        failures_in_a_row: Number of queries since the last good answer.
        seconds: How long the last query took.
        error: Why the last query failed; empty if it did not.
    """

    source: str
    query: str
    age_seconds: float
    asked: int
    failed: int
    failures_in_a_row: int
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class PlaceholderStatus:
    """State of the placeholders of a source, for operators.

    Attributes:
        source: Name of the source, e.g. "slurm".
        pending: Number of placeholders that wait to start.
        running: Number of nodes that are held.
        ending: Number of placeholders that were cancelled, or whose node is wanted back, and that have not ended.
        failures_in_a_row: Attempts in a row to hold a node, or to list placeholders, that have failed.
        paused: Whether there were so many failures that submission pauses.
        retry_at: When the next attempt is due, in seconds since the epoch; None if nothing has failed.
        node: Node of the last failure; empty where none was asked for.
        error: What the scheduler said about it; empty if nothing has failed.
    """

    source: str
    pending: int
    running: int
    ending: int
    failures_in_a_row: int = 0
    paused: bool = False
    retry_at: float | None = None
    node: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Whether a source works, for operators.

    Attributes:
        queries: Each kind of query to a scheduler; empty for a source without a scheduler.
        placeholders: One entry for each scheduler whose nodes are held.
    """

    queries: tuple[QueryStatus, ...] = ()
    placeholders: tuple[PlaceholderStatus, ...] = ()


class NodeSource(Protocol):
    """Tells which nodes are idle. By default it asks no scheduler, holds no nodes and keeps nothing."""

    def order(self) -> Sequence[str]:
        """All names that are known beforehand, in the order in which nodes are listed."""
        return ()

    def past_lengths(self) -> Sequence[float]:
        """Lengths in seconds of idle fragments that ended before the first observation, oldest first."""
        return ()

    @abstractmethod
    def observations(self) -> AsyncIterator[Observation]:
        """The present observation, then one for each change. Ends after an observation that says `ended`, if any does.

        Raises:
            SourceError: the source can't be read now.
            OSError: a file or program of the source fails.
        """

    def status(self) -> SourceStatus:
        """How queries to a scheduler and placeholders fare."""
        return SourceStatus()

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        """Give back nodes that are held, and hold none of them again.

        Each call replaces the nodes of the call before.

        Args:
            until: Before a time in seconds since the epoch, by node.
            drained: At no time.
        """
        del until, drained

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds: move what is counted by it, but not what a scheduler has said."""
        del seconds

    async def close(self) -> None:
        """Release what the source keeps, at a graceful end."""
        return


class WrappingSource(NodeSource):
    """Another source, of which subclasses change something."""

    def __init__(self, inner: NodeSource) -> None:
        self._inner = inner

    def order(self) -> Sequence[str]:
        """As the inner source."""
        return self._inner.order()

    def past_lengths(self) -> Sequence[float]:
        """As the inner source."""
        return self._inner.past_lengths()

    def status(self) -> SourceStatus:
        """As the inner source."""
        return self._inner.status()

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        """As the inner source."""
        self._inner.exclude(until, drained)

    def move_times(self, seconds: float) -> None:
        """As the inner source."""
        self._inner.move_times(seconds)

    async def close(self) -> None:
        """As the inner source."""
        await self._inner.close()


class PlaceholderView(Protocol):
    """What a source of idle nodes must know of our placeholders: the scheduler does not call their nodes idle."""

    def nodes(self) -> frozenset[str]:
        """Nodes on which a placeholder of ours runs."""

    def jobs(self) -> frozenset[str]:
        """Identifiers of all placeholders. The planned starts of pending ones do not end the idleness of a node."""


class NoPlaceholders:
    """The view where nodes are not held, only watched."""

    def nodes(self) -> frozenset[str]:
        """No nodes."""
        return frozenset()

    def jobs(self) -> frozenset[str]:
        """No jobs."""
        return frozenset()
