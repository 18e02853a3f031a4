"""Gives jobs nodes where a log says only how many they had."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.runs import Run

MAX_PLACED_NODES = 100_000
MAX_SLOTS = 10_000
PLACED = "the log does not say which nodes: the lowest free ones"
OVERCOMMITTED = "the log does not say which nodes, and more than all were in use: those that were free"


def place_runs(runs: Iterable[Run], nodes: int, slots_per_node: int = 1) -> Iterator[Run]:
    """Give runs the lowest nodes that are free, by their starts.

    Runs that need parts of nodes share them: whole nodes are given first, and the rest goes to the node with the fewest
    free slots that has enough. How many nodes are idle at a time is right if jobs were packed as closely; which node is
    idle for how long is assumed.

    Args:
        runs: Runs with `slots` and without nodes, in any order.
        nodes: Nodes of the machine.
        slots_per_node: Slots of each node.

    Yields:
        The runs by their starts, with names of nodes.

    Raises:
        InvalidInputError: there are more nodes than can be placed.
    """
    if not 1 <= nodes <= MAX_PLACED_NODES:
        raise InvalidInputError("--nodes-count", f"1 to {MAX_PLACED_NODES}", nodes)
    machine = _Machine(nodes, slots_per_node)
    for run in sorted(runs, key=lambda run: run.from_s):
        machine.release_until(run.from_s)
        until_s = float("inf") if run.until_s is None else run.until_s
        held, complete = machine.take_slots(run.slots, until_s)
        assumed = PLACED if complete else OVERCOMMITTED
        if held:
            yield run._replace(nodes=tuple(machine.names[node] for node in held), assumed=assumed)


def node_names(nodes: int) -> tuple[str, ...]:
    """Names of the nodes of a machine that is known by its size only."""
    width = len(str(nodes))
    return tuple(f"n{number:0{width}d}" for number in range(1, nodes + 1))


class _Machine:
    """Nodes with free slots."""

    def __init__(self, nodes: int, slots_per_node: int) -> None:
        self.names = node_names(nodes)
        self._slots = slots_per_node
        self._free = [slots_per_node] * nodes
        # Nodes by how many slots are free. An entry is valid while that is still so.
        self._with_free: list[list[int]] = [[] for _ in range(slots_per_node + 1)]
        self._with_free[slots_per_node] = list(range(nodes))
        self._running: list[tuple[float, int, tuple[tuple[int, int], ...]]] = []
        self._count = 0

    def release_until(self, time_s: float) -> None:
        """End the runs that have ended by then."""
        while self._running and self._running[0][0] <= time_s:
            for node, slots in heapq.heappop(self._running)[2]:
                self._change(node, slots)

    def take_slots(self, slots: int, until_s: float) -> tuple[list[int], bool]:
        """Nodes for a run, and whether it got all that it needs."""
        slots_of_nodes: list[tuple[int, int]] = []
        remaining_slots = slots
        while remaining_slots >= self._slots and (node := self._pop(self._slots)) is not None:
            slots_of_nodes.append((node, self._slots))
            self._change(node, -self._slots)
            remaining_slots -= self._slots
        if 0 < remaining_slots < self._slots:
            fitting = (
                fitting_node
                for free in range(remaining_slots, self._slots + 1)
                if (fitting_node := self._pop(free)) is not None
            )
            if (node := next(fitting, None)) is not None:
                slots_of_nodes.append((node, remaining_slots))
                self._change(node, -remaining_slots)
                remaining_slots = 0
        heapq.heappush(self._running, (until_s, self._count, tuple(slots_of_nodes)))
        self._count += 1
        return [node for node, _ in slots_of_nodes], remaining_slots == 0

    def _pop(self, free: int) -> int | None:
        """The lowest node with so many free slots."""
        heap = self._with_free[free]
        while heap:
            node = heapq.heappop(heap)
            if self._free[node] == free:
                return node
        return None

    def _change(self, node: int, slots: int) -> None:
        self._free[node] += slots
        heapq.heappush(self._with_free[self._free[node]], node)
