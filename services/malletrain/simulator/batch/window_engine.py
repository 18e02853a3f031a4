"""Simulation of a scheduler over nodes, burst buffer and SSD, with a window from which jobs are selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from malletrain.selection.problem import (
    FreeResources,
    MachineResources,
    ReservedResources,
    ResourceRequest,
    SelectionProblem,
)
from malletrain.selection.rule import AdaptiveTradeOff
from malletrain.selection.select import SelectionSettings, select
from malletrain.simulator.batch.engine import BatchSimulation, FreeNodes, Overrun
from malletrain.simulator.batch.policies import (
    BatchPolicy,
    Flags,
    Ints,
    ReservedKinds,
    SelectionCounts,
    Starved,
    WindowSettings,
)
from malletrain.simulator.batch.schedule import Schedule
from malletrain.simulator.batch.workload import BatchWorkload


@dataclass(slots=True)
class Amounts:
    """Amounts that change: nodes of the small and of the large class, and burst buffer in GB."""

    small: int
    large: int
    burst_buffer_gb: int

    def subtract(self, amounts: Amounts) -> None:
        """Subtract what is taken."""
        self.small -= amounts.small
        self.large -= amounts.large
        self.burst_buffer_gb -= amounts.burst_buffer_gb

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
        large = (range(part.start + offset, part.stop + offset) for part in self._large.take_nodes(amounts.large))
        return (*self._small.take_nodes(amounts.small), *large)

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
                shadow_s = max(shadow_s, float(ends[by_end.searchsorted(amount)]))
        ended = int(ends.searchsorted(shadow_s, side="right"))
        small, large, burst_buffer = freed[ended - 1].tolist() if ended else (0, 0, 0)
        return shadow_s, Amounts(free.small + small, free.large + large, free.burst_buffer_gb + burst_buffer)


def simulate_window(
    workload: BatchWorkload,
    policy: BatchPolicy,
    settings: WindowSettings,
    *,
    overrun: Overrun = Overrun.KILL,
    progress: Callable[[int], None] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[Schedule, SelectionCounts]:
    """Run a workload; see docs/bbsched.md for one pass of the scheduler.

    Args:
        workload: Jobs and machine.
        policy: Order of the queue, and whether jobs are backfilled.
        settings: Window and backfilling.
        overrun: Whether jobs are killed at their estimate.
        progress: Called from time to time with the number of jobs that have started.
        clock: Seconds, by which the selections are timed.

    Raises:
        InvalidInputError: the method does not suit the machine, or an exact search was too long.
    """
    simulation = _WindowSimulation(workload, policy, settings, overrun, progress, clock)
    return simulation.run(), simulation.counts


class _WindowSimulation(BatchSimulation):
    def __init__(
        self,
        workload: BatchWorkload,
        policy: BatchPolicy,
        settings: WindowSettings,
        overrun: Overrun,
        progress: Callable[[int], None] | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(workload, policy, overrun, progress)
        self._settings, self._clock = settings, clock
        self._machine = workload.resources or MachineResources(workload.nodes)
        self._requests = [job.request for job in self._jobs]
        self._large = np.array([self._machine.wants_large(request) for request in self._requests])
        self._nodes = np.array([job.nodes for job in self._jobs])
        self._burst_buffer = np.array([job.burst_buffer_gb for job in self._jobs])
        self._estimates = np.array([job.estimate_s for job in self._jobs])
        self._free = FreeMachine(self._machine)
        self._expected = ExpectedReleases(workload.nodes)
        self._held: list[Amounts] = []
        self._promised: dict[int, float] = {}
        self._trade_off = AdaptiveTradeOff(self._machine) if settings.adaptive else None
        self._stays = [0] * len(self._jobs)
        self.counts = SelectionCounts()

    def _give_back(self, number: int) -> None:
        run, held = self._runs[number], self._held[number]
        self._free.give_back(run.nodes, held.burst_buffer_gb)
        self._expected.remove(run.start_s + run.job.estimate_s, held)

    def _decide(self) -> None:
        queue = self._queue()
        reserved = None
        selection = self._selection(queue)
        if selection is not None:
            size = self._settings.size_for(len(queue))
            while queue:
                window = queue[:size]
                reserved = self._start_starved(window)
                self._select(window, reserved, selection)
                waiting_jobs = [job for job in window if self._waits(job)]
                for job in waiting_jobs:
                    self._stays[job] += 1
                queue = [*waiting_jobs, *queue[len(window) :]]
                if waiting_jobs:
                    break
        if reserved is None:
            started = 0
            while started < len(queue) and self._fits(queue[started]):
                self._start(queue[started])
                started += 1
            queue = queue[started:]
        if queue and self._policy.backfills:
            head = reserved or self._reserve(queue[0])
            self._backfill(queue[: self._settings.backfill_depth], head)

    def _selection(self, queue: Sequence[int]) -> SelectionSettings | None:
        """How jobs are selected in this pass: with the factor that the workload has taught so far, if it may."""
        if self._settings.selection is None or self._trade_off is None:
            return self._settings.selection
        waiting = np.array(queue, dtype=np.int64)
        wanted = int(self._nodes[waiting].sum()), int(self._burst_buffer[waiting].sum())
        factor = self._trade_off.observe(self._now_s, *wanted)
        return replace(self._settings.selection, trade_off=factor)

    def _queue(self) -> list[int]:
        """Indices of the waiting jobs in the base order."""
        indices = self._waiting.indices
        if self._policy.scores is None:
            return list(indices.tolist())
        order = np.argsort(-self._policy.scores(self._waiting, self._now_s), kind="stable")
        return list(indices[order].tolist())

    def _waits(self, job: int) -> bool:
        return self._waiting.position_of(job) is not None

    def _fits(self, job: int) -> bool:
        return bool(self._fitting(np.array([job]), self._free.amounts)[0])

    def _fitting(self, jobs: Ints, free: Amounts) -> Flags:
        nodes, room = self._nodes[jobs], np.where(self._large[jobs], free.large, free.small + free.large)
        fitting: Flags = (nodes <= room) & (self._burst_buffer[jobs] <= free.burst_buffer_gb)
        return fitting

    def _start_starved(self, window: Sequence[int]) -> ResourceReservation | None:
        """Start the jobs past the bound that fit; the first that does not may get a reservation."""
        reserved = None
        for job in window:
            if self._stays[job] < self._settings.starvation_bound:
                continue
            if self._fits(job):
                if reserved is None or self._leaves(job, reserved):
                    self._start(job, reserved)
                    self.counts.forced_starts += 1
            elif reserved is None and self._settings.starved is Starved.RESERVE:
                reserved = self._reserve(job)
                self._promised.setdefault(job, reserved.start_s)
        return reserved

    def _select(self, window: Sequence[int], reserved: ResourceReservation | None, settings: SelectionSettings) -> None:
        waiting = np.array([job for job in window if self._waits(job)], dtype=np.int64)
        free = self._free.amounts
        candidates: list[int] = waiting[self._fitting(waiting, free)].tolist()
        if not candidates:
            return
        promised = None
        if reserved is not None:
            late = tuple(self._is_late(job, reserved) for job in candidates)
            promised = ReservedResources(reserved.request, reserved.free_then.frozen(), late)
        requests = tuple(self._requests[job] for job in candidates)
        began_s = self._clock()
        answer = select(SelectionProblem(self._machine, free.frozen(), requests, promised), settings)
        self.counts.solve_s.append(self._clock() - began_s)
        self.counts.genetic_answers += answer.genetic
        chosen = [candidates[index] for index in answer.chosen]
        self.counts.selected_starts += len(chosen)
        for job in sorted(chosen, key=lambda job: not self._large[job]):
            self._start(job, reserved)

    def _is_late(self, job: int, reserved: ResourceReservation) -> bool:
        return bool(self._now_s + self._estimates[job] > reserved.start_s)

    def _leaves(self, job: int, reserved: ResourceReservation) -> bool:
        """Whether a job that fits leaves a reservation what it needs."""
        if not self._is_late(job, reserved):
            return True
        then, wanted = reserved.free_then, reserved.request
        amounts = self._free.split(self._requests[job])
        if wanted.burst_buffer_gb + amounts.burst_buffer_gb > then.burst_buffer_gb:
            return False
        if self._machine.wants_large(wanted):
            return wanted.nodes + amounts.large <= then.large
        return wanted.nodes + amounts.small + amounts.large <= then.small + then.large

    def _reserve(self, job: int) -> ResourceReservation:
        request = self._requests[job]
        if self._settings.reserve is ReservedKinds.NODES:
            request = ResourceRequest(request.nodes, 0, request.ssd_gb)
        large = request.nodes if self._machine.wants_large(request) else 0
        wanted = Amounts(request.nodes, large, request.burst_buffer_gb)
        start_s, then = self._expected.reserve(wanted, self._free.amounts, self._now_s)
        self._reserved.setdefault(job, start_s)
        return ResourceReservation(job, request, start_s, then)

    def _backfill(self, queue: Sequence[int], reserved: ResourceReservation) -> None:
        others = np.array([job for job in queue if job != reserved.job], dtype=np.int64)
        position = 0
        while position < len(others):
            rest = others[position:]
            # Room only shrinks while jobs start: who does not fit now will not fit later.
            fitting = np.flatnonzero(self._fitting(rest, self._free.amounts))
            harmless = next((index for index in fitting.tolist() if self._leaves(int(rest[index]), reserved)), None)
            if harmless is None:
                return
            self._start(int(rest[harmless]), reserved)
            position += harmless + 1

    def _start(self, index: int, reserved: ResourceReservation | None = None) -> None:
        position = self._waiting.position_of(index)
        assert position is not None
        amounts = self._free.split(self._requests[index])
        if reserved is not None and self._is_late(index, reserved):
            reserved.free_then.subtract(amounts)
        self._waiting.remove(position)
        self.counts.late_starts += self._now_s > self._promised.get(index, self._now_s)
        self._begin(index, self._free.take(amounts))
        self._expected.add(self._now_s + self._jobs[index].estimate_s, amounts)
        self._held.append(amounts)
