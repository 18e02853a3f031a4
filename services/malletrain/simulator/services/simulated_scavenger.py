"""The Scavenger on a simulated clock: which nodes count as idle, and how long they are expected to stay so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.allocator.planner import PlannableNode
from malletrain.scavenger.idle_set import IdleEvent, IdleSet
from malletrain.scavenger.stays import StayEstimator


class SimulatedScavenger:
    """The idle set and the estimator of stays that the Scavenger uses."""

    def __init__(
        self,
        debounce_seconds: float,
        stay_horizon_seconds: float,
        nodes: Sequence[str] = (),
        pools: Mapping[str, str] | None = None,
    ) -> None:
        """Begin without idle nodes.

        Args:
            debounce_seconds: Seconds for which a node must be idle before it counts.
            stay_horizon_seconds: How far expected stays look ahead, in seconds.
            nodes: All nodes in the source's order.
            pools: Pool of each node; nodes that are missing are in the pool "".
        """
        self._idle_set = IdleSet(debounce_seconds, nodes)
        self._stays = StayEstimator(horizon_seconds=stay_horizon_seconds)
        self._pools = pools or {}

    def observe(self, now: float, idle: Mapping[str, float]) -> IdleEvent:
        """Take over what the source shows.

        Args:
            now: The time in seconds.
            idle: Each idle node with the time since when, in seconds.

        Returns:
            Nodes that join and leave the idle set.
        """
        self._stays.observe(now, idle)
        return self._idle_set.observe(now, idle)

    def tick(self, now: float) -> IdleEvent:
        """Nodes that join because their debounce is over."""
        return self._idle_set.tick(now)

    @property
    def next_join(self) -> float | None:
        """When the next node's debounce will be over, in seconds; None if there is no such node."""
        return self._idle_set.next_deadline()

    def nodes(self, now: float) -> list[PlannableNode]:
        """All nodes that count as idle, with their stays as expected at `now`."""
        return [
            PlannableNode(node.name, self._stays.expected_stay(now, node.idle_since), self._pools.get(node.name, ""))
            for node in self._idle_set.members()
        ]
