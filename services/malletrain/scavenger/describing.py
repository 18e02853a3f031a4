"""What is told of nodes: what they are, and how long they are expected to stay."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.scavenger.idle_set import IdleNode
from malletrain.scavenger.messages import node_message
from malletrain.scavenger.sources.base import NO_FACTS, Observation
from malletrain.scavenger.stays import StayEstimator
from malletrain.v1 import resources_pb2


class NodeDescriber:
    """Learns from pictures of the source, and describes nodes by them."""

    def __init__(self, stays: StayEstimator) -> None:
        """Know of no picture yet; `stays` learns how long nodes stay."""
        self._stays = stays
        self._newest = Observation(0.0, {})

    @property
    def stale(self) -> bool:
        """Whether the newest picture is one of a source that has been silent for too long."""
        return self._newest.stale

    def observe(self, observation: Observation) -> None:
        """Take over a picture."""
        if not observation.stale:
            # Nodes that are only left out for caution have not ended their fragments.
            watched = observation.idle if observation.watched is None else observation.watched
            self._stays.observe(observation.time, watched)
        self._newest = observation

    def messages(self, nodes: Sequence[IdleNode], now: float) -> list[resources_pb2.Node]:
        """The nodes with all that is known of them at `now` seconds since the epoch."""
        newest = self._newest
        return [
            node_message(
                node,
                self._stays.expected_stay(now, node.idle_since, newest.ends.get(node.name)),
                newest.facts.get(node.name, NO_FACTS),
                newest.ends.get(node.name),
                newest.agents.get(node.name, ""),
            )
            for node in nodes
        ]
