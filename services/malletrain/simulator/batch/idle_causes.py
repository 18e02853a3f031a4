"""Why nodes are idle: no job waits, they are held for a reservation, a job lacks only burst buffer, or they are few."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.schedule import Schedule

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class IdleCauses:
    """Idle node-hours by cause.

    Attributes:
        no_job_waiting: No job waits.
        reservation: A waiting job fits, but would delay one with a reservation.
        burst_buffer: No waiting job fits, and one lacks only burst buffer.
        too_few: All waiting jobs need more nodes than are idle.
    """

    no_job_waiting: float
    reservation: float
    burst_buffer: float
    too_few: float

    @property
    def all(self) -> float:
        """Sum of all causes."""
        return math.fsum((self.no_job_waiting, self.reservation, self.burst_buffer, self.too_few))


def idle_causes(schedule: Schedule, machine: MachineResources, first_s: float, last_s: float) -> IdleCauses:
    """Idle node-hours of a schedule from `first_s` to `last_s`, each instant's by one cause."""
    sweep = _Sweep(schedule, machine)
    times = sweep.instants(first_s, last_s)
    hours = dict.fromkeys(IdleCauses.__dataclass_fields__, 0.0)
    for begin_s, end_s in pairwise(times):
        idle, cause = sweep.at(begin_s)
        hours[cause] += idle * (end_s - begin_s) / _HOUR_S
    return IdleCauses(**hours)


class _Sweep:
    """Goes through a schedule instant by instant."""

    def __init__(self, schedule: Schedule, machine: MachineResources) -> None:
        runs = schedule.runs
        self._machine = machine
        self._submit = np.array([run.job.submit_s for run in runs])
        self._start = np.array([run.start_s for run in runs])
        self._end = np.array([run.end_s for run in runs])
        self._nodes = np.array([run.job.nodes for run in runs], dtype=np.int64)
        self._burst_buffer = np.array([run.job.burst_buffer_gb for run in runs], dtype=np.int64)
        self._wants_large = np.array([machine.wants_large(run.job.request) for run in runs])
        offset = machine.small_nodes
        large = [sum(len(part) for part in run.nodes if part.start >= offset) for run in runs]
        self._held = np.stack([self._nodes, np.array(large, dtype=np.int64), self._burst_buffer])
        self._by_start, self._by_end, self._by_submit = (
            np.argsort(times, kind="stable") for times in (self._start, self._end, self._submit)
        )
        self._started = self._ended = self._submitted = 0
        self._used = np.zeros(3, dtype=np.int64)
        self._waiting: set[int] = set()

    def instants(self, first_s: float, last_s: float) -> list[float]:
        every = np.unique(np.concatenate([self._submit, self._start, self._end, [first_s, last_s]]))
        return [float(time) for time in every[(every >= first_s) & (every <= last_s)]]

    def at(self, now_s: float) -> tuple[int, str]:
        """Idle nodes from `now_s` on, and why; times only grow."""
        self._advance(now_s)
        machine = self._machine
        idle = machine.nodes - int(self._used[0])
        if not self._waiting:
            return idle, "no_job_waiting"
        jobs: NDArray[np.int64] = np.fromiter(self._waiting, dtype=np.int64)
        room = np.where(self._wants_large[jobs], machine.large_nodes - int(self._used[1]), idle)
        lacks = self._burst_buffer[jobs] > machine.burst_buffer_gb - int(self._used[2])
        fits = self._nodes[jobs] <= room
        if bool((fits & ~lacks).any()):
            return idle, "reservation"
        return idle, "burst_buffer" if bool(fits.any()) else "too_few"

    def _advance(self, now_s: float) -> None:
        while self._submitted < len(self._submit) and self._submit[self._by_submit[self._submitted]] <= now_s:
            self._waiting.add(int(self._by_submit[self._submitted]))
            self._submitted += 1
        while self._started < len(self._start) and self._start[self._by_start[self._started]] <= now_s:
            job = int(self._by_start[self._started])
            self._waiting.discard(job)
            self._used += self._held[:, job]
            self._started += 1
        while self._ended < len(self._end) and self._end[self._by_end[self._ended]] <= now_s:
            self._used -= self._held[:, int(self._by_end[self._ended])]
            self._ended += 1
