"""Profiles of simulated jobs whose true curve is known: their error and their cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from malletrain.model.scaling import ScalingPoint
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.machine.scale_selection import ScaleStrategy
from malletrain.profiler.settings import ProfilerSettings
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.profiling.advisor import LearningOptions, ProfilingAdvisor, StepNoise
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import Curves, ReplayJob
from malletrain.simulator.replay.node_events import node_events
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.running_job import speeds

_HOURS_S = 4 * 3600.0
_ENDLESS = 1e15
_UP_S, _DOWN_S = 18.0, 12.0


@dataclass(frozen=True)
class ProfileAccuracy:
    """One profile beside the truth.

    Attributes:
        shape: Name of the true curve.
        spread: StepNoise of the steps, relative standard deviation.
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
    strategy: ScaleStrategy
    mean_error: float
    worst_error: float
    visited: tuple[int, ...]
    growths: int
    shrinks: int
    node_seconds: float
    stalled_node_seconds: float
    seconds: float


def curve_with_knee(single: float, knee: int, max_nodes: int) -> tuple[ScalingPoint, ...]:
    """A curve that is linear up to a knee and almost flat beyond it, as with a saturated network or file system."""
    rates = (single * (min(n, knee) + 0.1 * max(0, n - knee)) for n in range(1, max_nodes + 1))
    return tuple(ScalingPoint(n, rate) for n, rate in zip(range(1, max_nodes + 1), rates, strict=True))


def shapes_of(published: Curves) -> dict[str, tuple[ScalingPoint, ...]]:
    """True curves by name: the published ones, and some with a knee, up to 64 nodes."""
    shapes = {name: tuple(point for point in curve if point.nodes > 0) for name, curve in published.items()}
    for knee in (6, 12, 24):
        shapes[f"knee at {knee}"] = curve_with_knee(1000.0, knee, 64)
    return shapes


def profile_of(
    shape: str, curve: tuple[ScalingPoint, ...], spread: float, strategy: ScaleStrategy, seed: int
) -> ProfileAccuracy:
    """Profile one job alone on as many idle nodes as it can use.

    Args:
        shape: Name of the curve.
        curve: Its truth.
        spread: StepNoise of the steps.
        strategy: How scales are chosen.
        seed: Of the noise.

    Raises:
        LookupError: the profile did not end.
    """
    largest = curve[-1].nodes
    job = ReplayJob("j", shape, 0.0, _UP_S, _DOWN_S, 1, largest, _ENDLESS, curve)
    names = tuple(f"n{index:03d}" for index in range(largest))
    # The other nodes become idle a minute after the first, so that the job has to grow.
    begins = [0.0, *(60.0 for _ in names[1:])]
    trace = Trace(tuple(Fragment(name, b, _HOURS_S) for name, b in zip(names, begins, strict=True)), names, _HOURS_S)
    options = ReplayOptions(duration_s=_HOURS_S - 1.0)
    settings = ProfilerSettings(strategy=strategy, retry_seconds=5.0)
    learning = LearningOptions(settings=settings, mode=ProfilingMode.ALWAYS, noise=StepNoise(spread=spread))
    advisor = ProfilingAdvisor(learning, options, largest, np.random.default_rng(seed))
    run_replay(node_events(trace, options.duration_s), names, [job], options, advisor=advisor)
    run = advisor.state.runs.get("j")
    if run is None or run.state is not ProfileRunState.DONE:
        raise LookupError(f"{shape}: the profile did not end: {run}")
    return _compare(shape, spread, strategy, job, advisor, run)


def _compare(
    shape: str, spread: float, strategy: ScaleStrategy, job: ReplayJob, advisor: ProfilingAdvisor, run: ProfileRun
) -> ProfileAccuracy:
    profile = advisor.curves.profile("j")
    points = () if profile is None else profile.points
    scales = range(1, job.max_nodes + 1)
    true = speeds(job, job.max_nodes)[1:]
    measured = np.interp(scales, [0, *(p.nodes for p in points)], [0.0, *(p.rate for p in points)])
    errors = [abs(float(rate) / truth - 1.0) for rate, truth in zip(measured, true, strict=True)]
    return ProfileAccuracy(
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


def average_accuracy(rows: Sequence[ProfileAccuracy]) -> ProfileAccuracy:
    """The mean of repetitions; scales and worst error are those of the least accurate one."""
    worst = max(rows, key=lambda row: row.mean_error)
    return replace(
        worst,
        growths=max(row.growths for row in rows),
        mean_error=statistics.fmean(row.mean_error for row in rows),
        node_seconds=statistics.fmean(row.node_seconds for row in rows),
        stalled_node_seconds=statistics.fmean(row.stalled_node_seconds for row in rows),
        seconds=statistics.fmean(row.seconds for row in rows),
    )
