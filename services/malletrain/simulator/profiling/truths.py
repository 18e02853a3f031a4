"""Profiles of jobs whose true curve is known: error, growths, and what they cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from malletrain.allocator.problem import ScalingPoint
from malletrain.profiler.modes import Mode
from malletrain.profiler.runs import Run, RunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.sizes import Strategy
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.profiling.advisor import Learning, ProfilingAdvisor
from malletrain.simulator.profiling.steps import Noise
from malletrain.simulator.replay.engine import play
from malletrain.simulator.replay.node_events import node_events
from malletrain.simulator.replay.options import Options
from malletrain.simulator.replay.running import speeds
from malletrain.simulator.replay.workload import Curves, TraceJob

_HOURS_S = 4 * 3600.0
_ENDLESS = 1e15
_UP_S, _DOWN_S = 18.0, 12.0


@dataclass(frozen=True)
class Truth:
    """One profile beside the truth.

    Attributes:
        shape: Name of the true curve.
        spread: Noise of the steps, relative standard deviation.
        strategy: How scales were chosen.
        mean_error: Mean relative error of the curve, over all scales.
        worst_error: The largest.
        visited: Scales measured.
        growths: Growths that it took, the start from nothing apart.
        shrinks: Shrinks that it took.
        node_seconds: What the job held meanwhile; it trained on it, stalls apart.
        stalled_node_seconds: The part in which it stood still.
        seconds: How long it took.
    """

    shape: str
    spread: float
    strategy: Strategy
    mean_error: float
    worst_error: float
    visited: tuple[int, ...]
    growths: int
    shrinks: int
    node_seconds: float
    stalled_node_seconds: float
    seconds: float


def kneed(single: float, knee: int, largest: int) -> tuple[ScalingPoint, ...]:
    """A curve that scales linearly up to a knee and hardly beyond: a full network, or a file system that gives out."""
    rates = (single * (min(n, knee) + 0.1 * max(0, n - knee)) for n in range(1, largest + 1))
    return tuple(ScalingPoint(n, rate) for n, rate in zip(range(1, largest + 1), rates, strict=True))


def shapes_of(published: Curves, largest: int = 64) -> dict[str, tuple[ScalingPoint, ...]]:
    """Published curves, and some with a knee."""
    found = {name: tuple(point for point in curve if point.nodes > 0) for name, curve in published.items()}
    for knee in (6, 12, 24):
        found[f"knee at {knee}"] = kneed(1000.0, knee, largest)
    return found


def profile_of(
    shape: str, curve: tuple[ScalingPoint, ...], spread: float, strategy: Strategy, seed: int, held: int = 1
) -> Truth:
    """Profile one job alone on as many idle nodes as it can use.

    Args:
        shape: Name of the curve.
        curve: Its truth.
        spread: Noise of the steps.
        strategy: How scales are chosen.
        seed: Of the noise.
        held: Node count below which the pool is kept until the profile begins: the job trains there first.

    Raises:
        LookupError: the profile did not end.
    """
    largest = curve[-1].nodes
    job = TraceJob("j", shape, 0.0, _UP_S, _DOWN_S, 1, largest, _ENDLESS, curve)
    names = tuple(f"n{index:03d}" for index in range(largest))
    # The first nodes are there from the beginning, the others come a minute later: the job has to grow.
    begins = [0.0 if index < held else 60.0 for index in range(largest)]
    trace = Trace(tuple(Fragment(name, b, _HOURS_S) for name, b in zip(names, begins, strict=True)), names, _HOURS_S)
    options = Options(duration_s=_HOURS_S - 1.0)
    settings = ProfilerSettings(strategy=strategy, retry_seconds=5.0)
    learning = Learning(settings=settings, mode=Mode.ALWAYS, noise=Noise(spread=spread))
    advisor = ProfilingAdvisor(learning, options, largest, np.random.default_rng(seed))
    play(node_events(trace, options.duration_s), names, [job], options, advisor=advisor)
    run = advisor.office.desk.runs.get("j")
    if run is None or run.state is not RunState.DONE:
        raise LookupError(f"{shape}: the profile did not end: {run}")
    return _compared(shape, spread, strategy, job, advisor, run)


def _compared(
    shape: str, spread: float, strategy: Strategy, job: TraceJob, advisor: ProfilingAdvisor, run: Run
) -> Truth:
    profile = advisor.office.book.profile("j")
    points = () if profile is None else profile.points
    scales = range(1, job.max_nodes + 1)
    true = speeds(job, job.max_nodes)[1:]
    found = np.interp(scales, [0, *(p.nodes for p in points)], [0.0, *(p.rate for p in points)])
    errors = [abs(float(rate) / truth - 1.0) for rate, truth in zip(found, true, strict=True)]
    return Truth(
        shape,
        spread,
        strategy,
        statistics.fmean(errors),
        max(errors),
        run.visited,
        run.growths,
        run.shrinks,
        run.node_seconds,
        run.stalled_node_seconds,
        run.seconds,
    )


def averaged(rows: Sequence[Truth]) -> Truth:
    """The mean of repetitions; scales and worst error are those of the worst one."""
    worst = max(rows, key=lambda row: row.mean_error)
    return replace(
        worst,
        growths=max(row.growths for row in rows),
        mean_error=statistics.fmean(row.mean_error for row in rows),
        node_seconds=statistics.fmean(row.node_seconds for row in rows),
        stalled_node_seconds=statistics.fmean(row.stalled_node_seconds for row in rows),
        seconds=statistics.fmean(row.seconds for row in rows),
    )
