"""How well idle nodes were used: U of a period, and what it would have been if rescaling were free. Pure.

U is what `malletrain replay` calls the utilization efficiency: samples trained on idle nodes, over those that the
same jobs would have trained on as many nodes that are always there (docs/replay.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.choice_table import choose
from malletrain.allocator.problem import AllocationProblem, JobDemand
from malletrain.dashboard.facts import CurveFact, JobFact
from malletrain.dashboard.history import History, Minute
from malletrain.dashboard.past import Past
from malletrain.model.scaling import ScalingPoint

HOUR_S = 3600.0
_MOST_SOLVED = 300
"""Different problems of the past that are solved, of some 10 ms each on a large machine."""


@dataclass(frozen=True)
class Efficiency:
    """U of a period.

    Attributes:
        seconds: Length of the period for which all is known.
        nodes: Mean number of idle nodes.
        achieved: U; None where nothing could have been trained.
        bound: U if rescaling were free, of the same period.
    """

    seconds: float
    nodes: float
    achieved: float | None
    bound: float | None


def units_per_node(history: History) -> int:
    """What scales are counted in: GPUs, as many to a node as this, where a fleet trains; else nodes, 1."""
    members = [job for job in history.jobs.values() if job.fleet and not job.final]
    most = max((node.gpu_count for node in (history.nodes or {}).values()), default=1)
    return max((max(1, job.fleet_gpus or most) for job in members), default=1)


def demands(jobs: Iterable[JobFact], curves: dict[str, CurveFact], units: int = 1) -> tuple[JobDemand, ...]:
    """The jobs that take part in plans and whose curve is known, as if rescaling were free and all weighed the same.

    Args:
        jobs: The jobs.
        curves: Their curves.
        units: Units of a node that scales are counted in. Jobs that are no members of a fleet take whole nodes.
    """
    found = []
    for job in jobs:
        curve, unit = curves.get(job.id), 1 if job.fleet else units
        points = tuple(
            ScalingPoint(point.nodes * unit, point.rate) for point in (curve.points if curve else ()) if point.nodes > 0
        )
        if job.admitted and not job.final and points and points[0].rate > 0:
            permitted = job.permitted
            if unit > 1 and not permitted:
                most = min(job.max_nodes, points[-1].nodes // unit)
                permitted = tuple(range(job.min_nodes, most + 1))
            scales = tuple(unit * scale for scale in permitted)
            found.append(JobDemand(job.id, unit * job.min_nodes, unit * job.max_nodes, points, permitted_nodes=scales))
    return tuple(found)


def free_rate(jobs: Sequence[JobDemand], nodes: int) -> float:
    """Most samples per second that jobs can train on a number of units (`units_per_node`), if rescaling is free."""
    if not jobs or nodes <= 0:
        return 0.0
    return choose(AllocationProblem(tuple(str(number) for number in range(nodes)), 1.0, tuple(jobs))).objective


def past_free_rates(history: History, past: Past, curves: Mapping[str, CurveFact]) -> dict[float, float]:
    """What free rescaling would have given in the minutes before the services were heard, the newest ones first.

    Args:
        history: What has been heard since.
        past: The time before.
        curves: Of jobs whose curve is not in the history.

    Returns:
        Samples per second by the begin of the minute; of no more minutes than can be worked out in some seconds.
    """
    units, known = units_per_node(history), {**curves, **history.curves}
    solved: dict[tuple[frozenset[str], int], float] = {}
    found: dict[float, float] = {}
    for entry in reversed(past.minutes):
        jobs = [history.jobs[job_id] for job_id in sorted(entry.admitted) if job_id in history.jobs]
        nodes = round(units * entry.minute.idle / entry.seconds)
        key = (entry.admitted, nodes)
        if key not in solved:
            if len(solved) >= _MOST_SOLVED:
                break
            waiting = [replace(job, admitted=True, state="WAITING") for job in jobs]
            solved[key] = free_rate(demands(waiting, known, units), nodes)
        found[entry.minute.start] = solved[key]
    return found


def known_minutes(minutes: Iterable[Minute], since: float, until: float) -> list[Minute]:
    """The minutes of a period that are over and of which all is known."""
    return [
        minute
        for minute in minutes
        if since <= minute.start and minute.start + 60.0 <= until and minute.covered_s > 59.0
    ]


def efficiency(history: History, until: float, seconds: float = HOUR_S) -> Efficiency | None:
    """U of a period, with the jobs of now; None before the first whole minute.

    Args:
        history: What has happened.
        until: End of the period in seconds since the epoch.
        seconds: Its length.
    """
    minutes = known_minutes(history.minutes, until - seconds - 60.0, until)
    if not minutes:
        return None
    length = 60.0 * len(minutes)
    nodes = sum(minute.idle for minute in minutes) / length
    units = units_per_node(history)
    known, mean = demands(history.jobs.values(), dict(history.curves), units), units * nodes
    below = free_rate(known, int(mean))
    steady = below + (mean - int(mean)) * (free_rate(known, int(mean) + 1) - below)
    trained, free = sum(minute.samples for minute in minutes), sum(minute.free_samples for minute in minutes)
    if steady <= 0:
        return Efficiency(length, nodes, None, None)
    return Efficiency(length, nodes, trained / (length * steady), free / (length * steady))
