"""What trainers would report: steps with noise, and the points that Monitor would make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from malletrain.monitor.confidence import relative_error
from malletrain.monitor.throughput import robust_rate, without_hiccups
from malletrain.profiler.knots import Knot

_FENCE, _MOST_OUTLIERS = 5.0, 0.1
FULL_WINDOW = 256
"""Newest steps of a stay that count."""

_STUDENT = 2.13


@dataclass(frozen=True)
class Noise:
    """How steps scatter.

    Attributes:
        spread: Standard deviation of a step's time, relative.
        hiccups: Share of steps that take ten times as long.
        warmup_s: Seconds after a rescale that Monitor leaves out.
        publish_s: Seconds between two messages of Monitor.
    """

    spread: float = 0.05
    hiccups: float = 0.01
    warmup_s: float = 1.0
    publish_s: float = 1.0


def visit(
    nodes: int, rate: float, batch: int, seconds: float, end_s: float, noise: Noise, rng: np.random.Generator
) -> Knot | None:
    """The point that a stretch of steady steps gives, step by step through Monitor's own estimator.

    Args:
        nodes: Scale in nodes.
        rate: True samples/s there.
        batch: Samples per node and step.
        seconds: How long the job has trained there.
        end_s: When, in seconds: the point's age counts from then.
        noise: How steps scatter.
        rng: Randomness.
    """
    samples = batch * nodes
    count = int(max(0.0, seconds - noise.warmup_s) * rate / samples)
    if count < 5 or rate <= 0:
        return None
    kept = min(count, FULL_WINDOW)
    times = scattered(kept, noise, rng) * (samples / rate)
    steps = [(float(time), samples) for time in times]
    found = robust_rate(steps, _FENCE, _MOST_OUTLIERS)
    if found is None:
        return None
    error = relative_error(without_hiccups(steps, _FENCE, _MOST_OUTLIERS))
    return Knot(nodes, found, count, max(error, 1e-6), end_s)


def glance(
    nodes: int, rate: float, batch: int, seconds: float, end_s: float, noise: Noise, rng: np.random.Generator
) -> Knot | None:
    """As `visit`, by one draw from what its figures are distributed like: for jobs that nobody looks at closely."""
    count = int(max(0.0, seconds - noise.warmup_s) * rate / (batch * nodes))
    if count < 5 or rate <= 0:
        return None
    error = noise.spread / math.sqrt(min(count, FULL_WINDOW))
    return Knot(nodes, rate * (1.0 + error * float(rng.standard_normal())), count, max(_STUDENT * error, 1e-6), end_s)


def scattered(count: int, noise: Noise, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Times of steps, relative to the undisturbed one: of mean 1 apart from hiccups, never negative."""
    shape = 1.0 / noise.spread**2 if noise.spread > 0 else 1e12
    times = rng.gamma(shape, 1.0 / shape, count)
    return np.asarray(np.where(rng.random(count) < noise.hiccups, 10.0 * times, times), dtype=np.float64)


def seconds_needed(nodes: int, rate: float, batch: int, noise: Noise, least_steps: int, target: float) -> float:
    """How long a visit will take as a rule, in seconds, up to the message that says so."""
    steps = max(least_steps, math.ceil((_STUDENT * noise.spread / target) ** 2), 5)
    seconds = noise.warmup_s + steps * batch * nodes / rate
    return math.ceil(seconds / noise.publish_s) * noise.publish_s
