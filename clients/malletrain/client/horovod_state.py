"""Horovod's elastic state, with objects of the user's in it."""

from __future__ import annotations

import copy
from typing import Any

import horovod.torch as hvd

from malletrain.client.snapshots import Stateful


class ElasticState(hvd.elastic.TorchState):  # type: ignore[misc]  # Horovod has no types.
    """A `TorchState` that commits, rolls back and hands to newcomers what is registered with it."""

    def __init__(self, **state: Any) -> None:
        """As `TorchState`."""
        self._extra: dict[str, Stateful] = {}
        self._saved_extra: dict[str, dict[str, Any]] = {}
        super().__init__(**state)

    def register(self, name: str, thing: Stateful) -> None:
        """Keep an object's state from now on. All workers register the same names."""
        self._extra[name] = thing
        self._saved_extra[name] = copy.deepcopy(thing.state_dict())

    def extra(self) -> dict[str, dict[str, Any]]:
        """The present states of what is registered, by name."""
        return {name: thing.state_dict() for name, thing in self._extra.items()}

    def save(self) -> None:
        """Commit in memory."""
        super().save()
        self._saved_extra = copy.deepcopy(self.extra())

    def restore(self) -> None:
        """Go back to the last commit."""
        super().restore()
        self._load(self._saved_extra)

    def sync(self) -> None:
        """Take over rank 0's state."""
        super().sync()
        if self._extra:
            self._load(hvd.broadcast_object(self.extra(), root_rank=0, name="malletrain.extra"))

    def load_extra(self, states: dict[str, dict[str, Any]]) -> None:
        """Take states from a checkpoint; names that are not registered are left out."""
        self._load({name: state for name, state in states.items() if name in self._extra})

    def _load(self, states: dict[str, dict[str, Any]]) -> None:
        for name, state in states.items():
            # A copy: an object may keep what it is given, and change it.
            self._extra[name].load_state_dict(copy.deepcopy(state))
        self._saved_extra = copy.deepcopy(self.extra())
