"""Named objects of the user whose state is part of a training: schedulers, gradient scalers, data sources."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

States = dict[str, dict[str, Any]]
"""State by name."""


class Stateful(Protocol):
    """An object whose state can be read and restored."""

    def state_dict(self) -> dict[str, Any]:
        """The state: tensors, numbers, text, lists, tuples and dictionaries."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore a state."""


class ExtraState:
    """The registered objects. All workers register the same names."""

    def __init__(self) -> None:
        self._objects: dict[str, Stateful] = {}

    def __bool__(self) -> bool:
        return bool(self._objects)

    def add(self, name: str, stateful: Stateful) -> None:
        """Register an object."""
        self._objects[name] = stateful

    def states(self) -> States:
        """Present states of all objects."""
        return {name: stateful.state_dict() for name, stateful in self._objects.items()}

    def load(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore the states of the registered objects. Other names are ignored."""
        for name, stateful in self._objects.items():
            if name in states:
                # A copy: an object may keep the dictionary that it is given and change it.
                stateful.load_state_dict(copy.deepcopy(states[name]))
