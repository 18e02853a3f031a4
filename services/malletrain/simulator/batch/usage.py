"""The metrics of Fan et al. (HPDC 2019, §4.4): usage of resources, waits, why nodes are idle, and Kiviat graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.schedule import BatchRun, Schedule

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


_MIN_RUN_S = 60.0
"""Shorter runs are abnormal and leave the slowdown."""
_TB = 1000
_INF = math.inf

_Class = tuple[str, float, float]
_SIZES: tuple[_Class, ...] = (("1-8", 1, 8), ("9-127", 9, 127), ("128-1023", 128, 1023), ("1024-", 1024, _INF))
_REQUESTS: tuple[_Class, ...] = (
    ("0", -1, 0),
    ("1-100TB", 0, 100 * _TB),
    ("100-200TB", 100 * _TB, 200 * _TB),
    ("200TB-", 200 * _TB, _INF),
)
_RUNS: tuple[_Class, ...] = (("1h", -1, _HOUR_S), ("1-4h", _HOUR_S, 4 * _HOUR_S), ("4h-", 4 * _HOUR_S, _INF))


@dataclass(frozen=True)
class UsageMetrics:
    """Metrics of the measured part of a schedule.

    Usage is by overlap with the measured seconds; waits and slowdowns are of the jobs submitted in them.

    Attributes:
        node_usage: Used node-hours by those of the machine, 0 to 1.
        burst_buffer_usage: The same of GB-hours of burst buffer; 0 without burst buffer.
        ssd_usage: GB-hours of SSD that jobs asked for by those of the machine; None without SSDs.
        ssd_wasted: GB-hours of SSD on jobs' nodes beyond what they asked for, likewise.
        jobs: Number of jobs submitted in the measured seconds.
        mean_wait_s: Mean wait, seconds.
        max_wait_s: Longest wait, seconds.
        mean_slowdown: Mean of (wait + run) / run, without runs below 60 s.
        mean_bounded_slowdown: Mean of max(1, (wait + run) / max(run, 10 s)).
        makespan_s: From second 0 to the last end, seconds.
        waits_by_nodes: Mean wait in seconds by number of nodes; classes without jobs are not there.
        waits_by_burst_buffer: The same by request of burst buffer.
        waits_by_run: The same by run time.
        idle: Idle node-hours by cause.
    """

    node_usage: float
    burst_buffer_usage: float
    ssd_usage: float | None
    ssd_wasted: float | None
    jobs: int
    mean_wait_s: float
    max_wait_s: float
    mean_slowdown: float
    mean_bounded_slowdown: float
    makespan_s: float
    waits_by_nodes: Mapping[str, float]
    waits_by_burst_buffer: Mapping[str, float]
    waits_by_run: Mapping[str, float]
    idle: IdleCauses


def usage_of(schedule: Schedule, machine: MachineResources, measured_s: tuple[float, float] | None) -> UsageMetrics:
    """The metrics of a schedule.

    Args:
        machine: What the machine has.
        measured_s: From which second until which one to measure; None: from the first submission to the last, or to the
            last end where all jobs are submitted at once.

    Raises:
        InvalidInputError: no job is submitted in the measured seconds.
    """
    first_s, last_s = measured_s or (schedule.first_submit_s, schedule.last_submit_s)
    if first_s == last_s:
        last_s = schedule.last_end_s
    runs = [run for run in schedule.runs if first_s <= run.job.submit_s <= last_s]
    if not runs:
        raise InvalidInputError("measure", "seconds in which jobs are submitted", (first_s, last_s))
    lengths = [(run, max(0.0, min(run.end_s, last_s) - max(run.start_s, first_s))) for run in schedule.runs]
    span_s = last_s - first_s

    def share(amount_of: Callable[[BatchRun], int], total: int) -> float:
        return math.fsum(amount_of(run) * length_s for run, length_s in lengths) / (span_s * total) if total else 0.0

    ssd = machine.ssd_gb if machine.has_ssd else None
    # Classes that include their first number, as those that exclude it.
    sizes = [(name, low - 1, high) for name, low, high in _SIZES]
    slowdowns = [_slowdown(run) for run in runs if run.end_s - run.start_s >= _MIN_RUN_S]
    return UsageMetrics(
        node_usage=share(lambda run: run.job.nodes, machine.nodes),
        burst_buffer_usage=share(lambda run: run.job.burst_buffer_gb, machine.burst_buffer_gb),
        ssd_usage=None if ssd is None else share(_asked_gb, ssd),
        ssd_wasted=None if ssd is None else share(lambda run: _held_gb(run, machine) - _asked_gb(run), ssd),
        jobs=len(runs),
        mean_wait_s=fmean(run.wait_s for run in runs),
        max_wait_s=max(run.wait_s for run in runs),
        mean_slowdown=fmean(slowdowns) if slowdowns else 1.0,
        mean_bounded_slowdown=fmean(run.bounded_slowdown for run in runs),
        makespan_s=schedule.last_end_s,
        waits_by_nodes=_waits(runs, lambda run: run.job.nodes, sizes),
        waits_by_burst_buffer=_waits(runs, lambda run: run.job.burst_buffer_gb, _REQUESTS),
        waits_by_run=_waits(runs, lambda run: run.end_s - run.start_s, _RUNS),
        idle=idle_causes(schedule, machine, first_s, last_s),
    )


def _waits(runs: Iterable[BatchRun], value: Callable[[BatchRun], float], classes: Iterable[_Class]) -> dict[str, float]:
    """Mean waits of classes (low, high]."""
    waits: dict[str, list[float]] = {}
    for run in runs:
        name = next(name for name, low, high in classes if low < value(run) <= high)
        waits.setdefault(name, []).append(run.wait_s)
    return {name: fmean(waits[name]) for name, _, _ in classes if name in waits}


def _slowdown(run: BatchRun) -> float:
    return (run.end_s - run.job.submit_s) / (run.end_s - run.start_s)


def _asked_gb(run: BatchRun) -> int:
    return run.job.nodes * run.job.ssd_gb


def _held_gb(run: BatchRun, machine: MachineResources) -> int:
    large = sum(len(part) for part in run.nodes if part.start >= machine.small_nodes)
    return large * machine.large_ssd_gb + (run.job.nodes - large) * machine.small_ssd_gb


WITHOUT_SSD = ("node usage", "burst buffer usage", "1 / wait", "1 / slowdown")
WITH_SSD = ("node usage", "burst buffer usage", "SSD usage", "1 / wasted SSD", "1 / wait", "1 / slowdown")


def kiviat_axes(metrics: Mapping[str, UsageMetrics]) -> tuple[str, ...]:
    """The axes for these methods."""
    return WITH_SSD if all(usage.ssd_usage is not None for usage in metrics.values()) else WITHOUT_SSD


def kiviat(metrics: Mapping[str, UsageMetrics]) -> dict[str, tuple[float, ...]]:
    """The scaled value of each method on each axis; 1 on an axis on which all methods are equal."""
    rows = {name: _values(usage, len(kiviat_axes(metrics)) == len(WITH_SSD)) for name, usage in metrics.items()}
    scales = [(min(column), max(column)) for column in zip(*rows.values(), strict=True)]
    return {
        name: tuple(
            (value - low) / (high - low) if high > low else 1.0 for value, (low, high) in zip(row, scales, strict=True)
        )
        for name, row in rows.items()
    }


def kiviat_area(values: Sequence[float]) -> float:
    """The area of a Kiviat graph by that of the largest possible one, 0 to 1."""
    products = (one * two for one, two in zip(values, (*values[1:], values[0]), strict=True))
    return math.fsum(products) / len(values)


def _values(usage: UsageMetrics, ssd: bool) -> tuple[float, ...]:
    middle = (usage.ssd_usage or 0.0, _reciprocal(usage.ssd_wasted or 0.0)) if ssd else ()
    reciprocals = (_reciprocal(usage.mean_wait_s), _reciprocal(usage.mean_slowdown))
    return (usage.node_usage, usage.burst_buffer_usage, *middle, *reciprocals)


def _reciprocal(value: float) -> float:
    """1 / value; a value of 0 counts as the smallest that matters, so that it stays finite."""
    return 1.0 / max(value, 1e-9)
