"""What happens to the Scavenger (stimuli), and what it has others do (effects)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from malletrain.scavenger.machine.drains import DrainSet
from malletrain.scavenger.machine.idle_set import IdleEvent
from malletrain.scavenger.machine.observations import Observation


@dataclass(frozen=True)
class NodesObserved:
    """The source has told which nodes are idle."""

    observation: Observation


@dataclass(frozen=True)
class NodesReclaimed:
    """Nodes are taken out for a while.

    Attributes:
        nodes: Their names.
        cooldown_seconds: For how long.
    """

    nodes: tuple[str, ...]
    cooldown_seconds: float


@dataclass(frozen=True)
class DrainsChanged:
    """Operators have taken nodes out until they say otherwise, or let them be used again. It is stored already.

    Attributes:
        drains: All that is drained now.
        cause: The call, in one word.
    """

    drains: DrainSet
    cause: str


@dataclass(frozen=True)
class QuarantineEnded:
    """Failures of nodes are forgotten, and quarantines for them are over.

    Attributes:
        nodes: Their names; None: all.
    """

    nodes: tuple[str, ...] | None


class NodeFailure(NamedTuple):
    """Work has failed on a node.

    Attributes:
        node: Its name.
        reason: What happened, for people.
        by: Whose work it was, for people.
    """

    node: str
    reason: str
    by: str


@dataclass(frozen=True)
class FailuresReported:
    """Work has failed on nodes."""

    failures: tuple[NodeFailure, ...]


@dataclass(frozen=True)
class ClockMoved:
    """The wall clock was set by so many seconds."""

    seconds: float


@dataclass(frozen=True)
class StaysRequested:
    """Expected stays are about to be read: what was observed of fragments is worked in."""


@dataclass(frozen=True)
class Due:
    """A debounce or a cooldown may be over."""


Stimulus = (
    NodesObserved
    | NodesReclaimed
    | DrainsChanged
    | QuarantineEnded
    | FailuresReported
    | ClockMoved
    | StaysRequested
    | Due
)


@dataclass(frozen=True)
class AnnounceEvent:
    """Tell watchers of a change of the idle set.

    Attributes:
        event: The change; empty where only the source has ended.
        revision: Its number.
        unix_seconds: When it happened, in seconds since the epoch.
        cause: What led to it, in one word.
    """

    event: IdleEvent
    revision: int
    unix_seconds: float
    cause: str


@dataclass(frozen=True)
class ExcludeNodes:
    """Tell the source which nodes are out."""


@dataclass(frozen=True)
class StoreCooldowns:
    """Store until when reclaimed nodes stay out."""


@dataclass(frozen=True)
class StoreQuarantine:
    """Store failures and quarantines of nodes."""


@dataclass(frozen=True)
class NoteQuarantine:
    """A node is quarantined from now on, which the operator should know.

    Attributes:
        failure: The last failure there.
        seconds: For how long.
        is_check: Whether the node has failed its check, and no work there.
    """

    failure: NodeFailure
    seconds: float
    is_check: bool = False


Effect = AnnounceEvent | ExcludeNodes | StoreCooldowns | StoreQuarantine | NoteQuarantine
