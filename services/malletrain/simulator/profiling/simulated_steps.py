"""Simulated steps of a training, and the points that Monitor would measure from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from malletrain.monitor.machine.throughput import relative_error, robust_rate, without_outliers
from malletrain.profiler.machine.points import CurvePoint

_FENCE, _MAX_OUTLIERS = 5.0, 0.1
FULL_WINDOW = 256
"""Number of newest steps of a stay that count."""

_STUDENT = 2.13


@dataclass(frozen=True)
class StepNoise:
    """How the times of steps scatter, and how Monitor reads them.

    Attributes:
        spread: Standard deviation of a step's time, relative to its mean.
        hiccups: Share of steps that take ten times as long.
        warmup_s: Seconds after a rescale that Monitor ignores.
        publish_s: Seconds between two messages of Monitor.
    """

    spread: float = 0.05
    hiccups: float = 0.01
    warmup_s: float = 1.0
    publish_s: float = 1.0


def measured_point(
    nodes: int, rate: float, batch: int, seconds: float, end_s: float, noise: StepNoise, rng: np.random.Generator
) -> CurvePoint | None:
    """The point measured in a time of steady training, step by step through Monitor's own estimator.

    Args:
        nodes: Scale in nodes.
        rate: True throughput at that scale in samples/s.
        batch: Samples per node and step.
        seconds: How long the job has trained there.
        end_s: End of that time, in seconds; the point's age counts from then.
        noise: How the times of steps scatter.
        rng: Source of the noise.

    Returns:
        None with fewer than five steps.
    """
    samples = batch * nodes
    count = int(max(0.0, seconds - noise.warmup_s) * rate / samples)
    if count < 5 or rate <= 0:
        return None
    kept = min(count, FULL_WINDOW)
    times = scattered(kept, noise, rng) * (samples / rate)
    steps = [(float(time), samples) for time in times]
    found = robust_rate(steps, _FENCE, _MAX_OUTLIERS)
    if found is None:
        return None
    error = relative_error(without_outliers(steps, _FENCE, _MAX_OUTLIERS))
    return CurvePoint(nodes, found, count, max(error, 1e-6), end_s)


def approximate_point(
    nodes: int, rate: float, batch: int, seconds: float, end_s: float, noise: StepNoise, rng: np.random.Generator
) -> CurvePoint | None:
    """As `measured_point`, but drawn directly from the distribution of rates: faster, for ordinary running."""
    count = int(max(0.0, seconds - noise.warmup_s) * rate / (batch * nodes))
    if count < 5 or rate <= 0:
        return None
    error = noise.spread / math.sqrt(min(count, FULL_WINDOW))
    return CurvePoint(
        nodes, rate * (1.0 + error * float(rng.standard_normal())), count, max(_STUDENT * error, 1e-6), end_s
    )


def scattered(count: int, noise: StepNoise, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Times of `count` steps relative to the undisturbed time, shape (count,): positive, mean 1 apart from hiccups."""
    shape = 1.0 / noise.spread**2 if noise.spread > 0 else 1e12
    times = rng.gamma(shape, 1.0 / shape, count)
    return np.asarray(np.where(rng.random(count) < noise.hiccups, 10.0 * times, times), dtype=np.float64)


def seconds_needed(nodes: int, rate: float, batch: int, noise: StepNoise, least_steps: int, target: float) -> float:
    """Expected time at a scale until Monitor's message shows that it is measured, in seconds."""
    steps = max(least_steps, math.ceil((_STUDENT * noise.spread / target) ** 2), 5)
    seconds = noise.warmup_s + steps * batch * nodes / rate
    return math.ceil(seconds / noise.publish_s) * noise.publish_s
