"""Nodes that operators have taken out of use until they say otherwise. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from malletrain.scavenger.machine.gpu_units import node_of_unit

_ALL = "all"
_NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Drain:
    """Why something is drained.

    Attributes:
        reason: For people; may be empty.
        user: Who did it.
        since: When, in seconds since the epoch.
    """

    reason: str
    user: str
    since: float


@dataclass(frozen=True)
class DrainSet:
    """The drained nodes.

    Attributes:
        everything: Set while all nodes are drained, unknown ones included.
        nodes: Drained nodes, by name, whether all nodes are drained or not.
    """

    everything: Drain | None = None
    nodes: Mapping[str, Drain] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        """Whether a node is drained; with a node, all its GPUs are."""
        return self.everything is not None or name in self.nodes or node_of_unit(str(name)) in self.nodes

    def drained(self, names: Iterable[str], drain: Drain) -> DrainSet:
        """With these nodes drained; those that are already keep their reason and time."""
        return replace(self, nodes={**dict.fromkeys(names, drain), **self.nodes})

    def all_drained(self, drain: Drain) -> DrainSet:
        """With all nodes drained; if they are already, their reason and time are kept."""
        return replace(self, everything=self.everything or drain)

    def resumed(self, names: Iterable[str]) -> DrainSet:
        """With these nodes in use again, unless all are drained."""
        gone = frozenset(names)
        return replace(self, nodes={name: drain for name, drain in self.nodes.items() if name not in gone})

    def to_json(self) -> dict[str, Any]:
        """For the state file."""
        return {
            _ALL: None if self.everything is None else asdict(self.everything),
            _NODES: {name: asdict(drain) for name, drain in self.nodes.items()},
        }


def read_drains(stored: Mapping[str, Any]) -> DrainSet:
    """What `to_json` has made; what is not of that form is left out."""
    everything = _read(stored.get(_ALL))
    nodes = stored.get(_NODES)
    read = {name: _read(entry) for name, entry in nodes.items()} if isinstance(nodes, dict) else {}
    return DrainSet(everything, {name: drain for name, drain in read.items() if drain is not None})


def _read(entry: object) -> Drain | None:
    match entry:
        case {"reason": str(reason), "user": str(user), "since": int() | float() as since}:
            return Drain(reason, user, float(since))
    return None
