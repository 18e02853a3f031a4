"""The metrics of Fan et al. (HPDC 2019, §4.4): usage of each resource, waits by class of job, slowdowns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.idle_causes import IdleCauses, idle_causes
from malletrain.simulator.batch.schedule import BatchRun, Schedule

_MIN_RUN_S = 60.0
"""Shorter runs are abnormal and leave the slowdown."""
_HOUR_S = 3600.0
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
        schedule: The schedule.
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
        waits_by_nodes=_waits(runs, lambda run: run.job.nodes, _halved(_SIZES)),
        waits_by_burst_buffer=_waits(runs, lambda run: run.job.burst_buffer_gb, _REQUESTS),
        waits_by_run=_waits(runs, lambda run: run.end_s - run.start_s, _RUNS),
        idle=idle_causes(schedule, machine, first_s, last_s),
    )


def _halved(classes: Iterable[_Class]) -> tuple[_Class, ...]:
    """Classes that include their first number, as those that exclude it."""
    return tuple((name, low - 1, high) for name, low, high in classes)


def _waits(runs: Iterable[BatchRun], value: Callable[[BatchRun], float], classes: Iterable[_Class]) -> dict[str, float]:
    """Mean waits of classes (low, high]."""
    found: dict[str, list[float]] = {}
    for run in runs:
        name = next(name for name, low, high in classes if low < value(run) <= high)
        found.setdefault(name, []).append(run.wait_s)
    return {name: fmean(found[name]) for name, _, _ in classes if name in found}


def _slowdown(run: BatchRun) -> float:
    return (run.end_s - run.job.submit_s) / (run.end_s - run.start_s)


def _asked_gb(run: BatchRun) -> int:
    return run.job.nodes * run.job.ssd_gb


def _held_gb(run: BatchRun, machine: MachineResources) -> int:
    large = sum(len(part) for part in run.nodes if part.start >= machine.small_nodes)
    return large * machine.large_ssd_gb + (run.job.nodes - large) * machine.small_ssd_gb
