"""Horovod's elastic state, with objects of the user's in it."""

from __future__ import annotations

import copy
from typing import Any

import horovod.torch as hvd

from malletrain.client.learning_rate import Ramp
from malletrain.client.registered import Registered, States


class ElasticState(hvd.elastic.TorchState):  # type: ignore[misc]  # Horovod has no types.
    """A `TorchState` that commits, rolls back and hands to newcomers what is registered with it.

    Attributes:
        samples: Samples processed so far by all workers together.
        ramp: How the learning rates come to fit the scale.
        random_states: States of the random number generators by rank, until they are restored.
        registered: Objects of the user's.
    """

    samples: int
    ramp: Ramp
    random_states: list[dict[str, Any]]

    def __init__(self, **state: Any) -> None:
        """As `TorchState`."""
        self.registered = Registered()
        self._saved: States = {}
        super().__init__(samples=0, ramp=Ramp(), random_states=[], **state)

    def save(self) -> None:
        """Commit in memory."""
        super().save()
        self._saved = copy.deepcopy(self.registered.states())

    def restore(self) -> None:
        """Go back to the last commit."""
        super().restore()
        self.registered.load(self._saved)

    def sync(self) -> None:
        """Take over rank 0's state."""
        super().sync()
        if self.registered:
            states = hvd.broadcast_object(self.registered.states(), root_rank=0, name="malletrain.extra")
            self.registered.load(states)
        self._saved = copy.deepcopy(self.registered.states())
