"""Objects of the user's whose state belongs to a training, by name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

States = dict[str, dict[str, Any]]


class Stateful(Protocol):
    """Whatever has a state to keep: a scheduler, a gradient scaler, a data source of your own."""

    def state_dict(self) -> dict[str, Any]:
        """The state: tensors, numbers, text, lists, tuples and dictionaries."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Take a state back."""


class Registered:
    """What is registered so far; the same names at all workers."""

    def __init__(self) -> None:
        self._things: dict[str, Stateful] = {}

    def __bool__(self) -> bool:
        return bool(self._things)

    def add(self, name: str, thing: Stateful) -> None:
        """Keep an object's state from now on."""
        self._things[name] = thing

    def states(self) -> States:
        """The present states."""
        return {name: thing.state_dict() for name, thing in self._things.items()}

    def load(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Take states back; names that are not registered are left out."""
        for name, thing in self._things.items():
            if name in states:
                # A copy: an object may keep what it is given, and change it.
                thing.load_state_dict(copy.deepcopy(states[name]))
