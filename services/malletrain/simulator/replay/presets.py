"""Built-in job sets: published scaling curves, and jobs as in BFTrainer's evaluation.

They stand for work that never ends: who replays them on a trace sets `ReplayOptions.repeat_jobs`.
"""

from __future__ import annotations

import random
from enum import StrEnum
from itertools import accumulate, repeat

from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.replay.job_set import ReplayJob, Workload

_SCALES = (1, 2, 4, 8, 16, 32, 64)
# BFTrainer, Table 2: thousands of samples/s on Summit, minibatch of 32 per GPU.
_THOUSANDS = {
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
}
_SAMPLES = 130e6  # 100 epochs of ImageNet (BFTrainer, section 4.2)
_SUBMIT_EVERY_S = 36.0
"""Mean time between submissions; the paper gives none."""
_UP_S, _DOWN_S = 18.0, 12.0
"""A growth of Elastic Horovod takes about 20 s (BFTrainer, section 2.1), a shrink less."""

MODELS = tuple(_THOUSANDS)
PRESETS = ("hpo", "imagenet")


class ArrivalProcess(StrEnum):
    """When the jobs of a built-in set are submitted."""

    POISSON = "poisson"
    FIXED = "fixed"


def preset_jobs(
    name: str, count: int = 1000, arrivals: ArrivalProcess | None = None, seed: int = 0
) -> tuple[ReplayJob, ...]:
    """A built-in job set: `hpo`, trials of ShuffleNet (BFTrainer, §5.1), or `imagenet`, seven networks (§5.2).

    Args:
        name: Which one.
        count: Number of jobs. Fewer jobs are the first ones of more.
        arrivals: A Poisson process or fixed distances, both of 36 s on average. None: a Poisson process for `imagenet`,
            as in the paper, and fixed distances for `hpo`, of which it says nothing.
        seed: Of the Poisson process.
    """
    models = ("ShuffleNet",) if name == "hpo" else MODELS
    chosen = arrivals or (ArrivalProcess.FIXED if name == "hpo" else ArrivalProcess.POISSON)
    times = _submissions(count, chosen, random.Random(f"{name} arrivals {seed}"))
    return tuple(_job(index, models[index % len(models)], submit_s) for index, submit_s in enumerate(times))


def preset_workload(name: str) -> Workload:
    """A built-in job set, repeated until the trace ends."""
    return Workload(preset_jobs(name), f"the built-in job set {name}, repeated to the end", repeats=True)


def _submissions(count: int, arrivals: ArrivalProcess, rng: random.Random) -> list[float]:
    """Seconds of submissions, the first one at 0."""
    if count < 1:
        return []
    if arrivals is ArrivalProcess.FIXED:
        return list(accumulate(repeat(_SUBMIT_EVERY_S, count - 1), initial=0.0))
    gaps = (rng.expovariate(1.0 / _SUBMIT_EVERY_S) for _ in range(count - 1))
    return list(accumulate(gaps, initial=0.0))


def _job(index: int, model: str, submit_s: float) -> ReplayJob:
    curve = tuple(ScalingPoint(n, 1000.0 * rate) for n, rate in zip(_SCALES, _THOUSANDS[model], strict=True))
    return ReplayJob(f"J{index:05d}", model, submit_s, _UP_S, _DOWN_S, 1, 64, _SAMPLES, curve)
