"""A machine with burst buffer and two node classes: what is free, who holds it, and when it is expected to be free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.selection.problem import FreeResources, MachineResources, ResourceRequest
from malletrain.simulator.batch.cluster import FreeNodes


@dataclass(slots=True)
class Amounts:
    """Amounts that change: nodes of the small and of the large class, and burst buffer in GB."""

    small: int
    large: int
    burst_buffer_gb: int

    def take(self, taken: Amounts) -> None:
        """Subtract what is taken."""
        self.small -= taken.small
        self.large -= taken.large
        self.burst_buffer_gb -= taken.burst_buffer_gb

    def frozen(self) -> FreeResources:
        """The same, as the selection wants it."""
        return FreeResources(self.small, self.large, self.burst_buffer_gb)


@dataclass(slots=True)
class ResourceReservation:
    """A reservation over all resources.

    Attributes:
        job: Index of the job.
        request: What it needs, as far as the reservation looks at it.
        start_s: Shadow time: when it is expected to fit.
        free_then: What is free then for it and for others.
    """

    job: int
    request: ResourceRequest
    start_s: float
    free_then: Amounts


class FreeMachine:
    """The free nodes of both classes and the free burst buffer. The nodes of the small class have the lower indices."""

    def __init__(self, machine: MachineResources) -> None:
        self._machine = machine
        self._small = FreeNodes(machine.small_nodes)
        self._large = FreeNodes(machine.large_nodes)
        self._burst_buffer_gb = machine.burst_buffer_gb

    @property
    def amounts(self) -> Amounts:
        """What is free now; a copy."""
        return Amounts(self._small.count, self._large.count, self._burst_buffer_gb)

    def split(self, request: ResourceRequest) -> Amounts:
        """Which nodes a job that fits takes."""
        small = 0 if self._machine.wants_large(request) else min(request.nodes, self._small.count)
        return Amounts(small, request.nodes - small, request.burst_buffer_gb)

    def take(self, amounts: Amounts) -> tuple[range, ...]:
        """Take the lowest free nodes of each class, and burst buffer."""
        self._burst_buffer_gb -= amounts.burst_buffer_gb
        offset = self._machine.small_nodes
        large = (range(part.start + offset, part.stop + offset) for part in self._large.take(amounts.large))
        return (*self._small.take(amounts.small), *large)

    def give_back(self, nodes: tuple[range, ...], burst_buffer_gb: int) -> None:
        """Free what was taken."""
        self._burst_buffer_gb += burst_buffer_gb
        offset = self._machine.small_nodes
        self._small.give_back(tuple(part for part in nodes if part.start < offset))
        large = tuple(range(part.start - offset, part.stop - offset) for part in nodes if part.start >= offset)
        self._large.give_back(large)


class ExpectedReleases:
    """What the running jobs hold, sorted by their expected ends."""

    def __init__(self, nodes: int) -> None:
        self._ends = np.empty(nodes, dtype=np.float64)
        self._held = np.empty((nodes, 3), dtype=np.int64)
        self._count = 0

    def add(self, end_s: float, held: Amounts) -> None:
        """Add a running job that is expected to end at `end_s`."""
        count = self._count
        index = int(self._ends[:count].searchsorted(end_s))
        for column in (self._ends, self._held):
            column[index + 1 : count + 1] = column[index:count]
        self._ends[index] = end_s
        self._held[index] = held.small, held.large, held.burst_buffer_gb
        self._count = count + 1

    def remove(self, end_s: float, held: Amounts) -> None:
        """Remove a job; any of several equal ones."""
        index = int(self._ends[: self._count].searchsorted(end_s))
        wanted = (held.small, held.large, held.burst_buffer_gb)
        while tuple(self._held[index].tolist()) != wanted:
            index += 1
        for column in (self._ends, self._held):
            column[index : self._count - 1] = column[index + 1 : self._count]
        self._count -= 1

    def reserve(self, wanted: Amounts, free: Amounts, now_s: float) -> tuple[float, Amounts]:
        """When `wanted` fits, and what is free then.

        Args:
            wanted: `small` nodes of any class, `large` nodes of the large class, and burst buffer.
            free: What is free now.
            now_s: Now; a job whose estimate has passed is expected to end now.
        """
        ends, freed = self._ends[: self._count], self._held[: self._count].cumsum(axis=0)
        missing = (
            (wanted.small - free.small - free.large, freed[:, 0] + freed[:, 1]),
            (wanted.large - free.large, freed[:, 1]),
            (wanted.burst_buffer_gb - free.burst_buffer_gb, freed[:, 2]),
        )
        shadow_s = now_s
        for amount, by_end in missing:
            if amount > 0:
                shadow_s = max(shadow_s, _end_at(ends, by_end, amount))
        ended = int(ends.searchsorted(shadow_s, side="right"))
        small, large, burst_buffer = freed[ended - 1].tolist() if ended else (0, 0, 0)
        return shadow_s, Amounts(free.small + small, free.large + large, free.burst_buffer_gb + burst_buffer)


def _end_at(ends: NDArray[np.float64], freed: NDArray[np.int64], amount: int) -> float:
    return float(ends[freed.searchsorted(amount)])
