"""What a source of idle nodes is to the service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from malletrain.runtime.errors import MalleTrainError


class SourceError(MalleTrainError):
    """A source can't tell now which nodes are idle; it is asked again later."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node is.

    Attributes:
        pool: Its partition, or what the operator calls these nodes; empty: there is only one. See `likeness`.
        gpu_type: Kind of its GPUs as the scheduler spells it, e.g. "a100"; empty without GPUs.
        gpus: How many GPUs it has.
        features: The scheduler's words for it.
        cpus: How many CPUs jobs may have there; 0 where the scheduler was not asked.
    """

    pool: str = ""
    gpu_type: str = ""
    gpus: int = 0
    features: tuple[str, ...] = ()
    cpus: int = 0

    @property
    def node_class(self) -> str:
        """What it has, in a word: "a100x4", or "cpu"."""
        return f"{self.gpu_type}x{self.gpus}" if self.gpus else "cpu"

    @property
    def likeness(self) -> str:
        """Its pool as others hear of it: of those with the same GPUs, as a curve by nodes and one worker a GPU mean."""
        return "/".join(filter(None, [self.pool, self.node_class])) if self.gpus else self.pool


NO_FACTS = NodeFacts()
"""Of a node of which nothing is told."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The whole picture at one instant.

    Attributes:
        time: When this picture came to be, in seconds since the epoch.
        idle: Each idle node with the time since when it is idle, in seconds since the epoch. The time of a node
            changes only when its fragment does.
        ended: The source has nothing more to tell: this picture stays.
        ends: When the idleness of a node will end, in seconds since the epoch, where the scheduler says.
        facts: What the nodes are, idle ones and others, where the source knows.
        known: Nodes that the source knows, idle or not, where it can tell.
        agents: Where the agents of nodes serve, HOST:PORT; a node without is this machine.
        watched: As `idle`, for all nodes on which the main scheduler runs nothing, where `idle` is only a part of
            them: how long nodes stay is learned from these. None: as `idle`.
        stale: The source has been silent for so long that nodes are left out for caution. That a node is missing
            here tells nothing of how long it was idle.
    """

    time: float
    idle: Mapping[str, float]
    ended: bool = False
    ends: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    watched: Mapping[str, float] | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """How one kind of question to a scheduler fares.

    Attributes:
        source: Name of the source, e.g. "slurm".
        query: Kind of question, e.g. "nodes".
        age_seconds: Age of the last good answer; infinite before the first.
        asked: How often it was asked so far.
        failed: How often there was no good answer.
        failures_in_a_row: How often since the last good answer.
        seconds: How long the last answer took.
        error: Why the last one was not good; empty when it was.
    """

    source: str
    query: str
    age_seconds: float
    asked: int
    failed: int
    failures_in_a_row: int
    seconds: float
    error: str


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

    def status(self) -> Sequence[QueryStatus]:
        """How its questions to a scheduler fare; none where it asks nobody."""

    def close(self) -> None:
        """Let go of what the source keeps, at a graceful end."""
