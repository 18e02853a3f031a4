"""Workloads of MalleTrain's evaluation (section 4.1.1): HPO over published models, NAS over unknown networks."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum

from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.presets import preset_jobs

_SCALES = (1, 2, 4, 8, 16, 32, 64)
_UP_S, _DOWN_S = 18.0, 12.0
_SUBMIT_EVERY_S = 36.0


class WorkloadKind(StrEnum):
    """Kind of jobs."""

    HPO = "hpo"
    NAS = "nas"


@dataclass(frozen=True)
class Mix:
    """A workload drawn with a seed.

    Attributes:
        workload: Kind of jobs.
        seed: Seed.
        samples: Samples that each job has to process.
        count: Number of jobs.
    """

    workload: WorkloadKind
    seed: int
    samples: float
    count: int = 2000

    def jobs(self) -> tuple[ReplayJob, ...]:
        """The jobs; the same arguments give the same jobs."""
        rng = random.Random(f"{self.workload} {self.seed}")
        make = _trial if self.workload is WorkloadKind.HPO else _architecture
        return tuple(make(index, self.samples, rng) for index in range(self.count))


def _trial(index: int, samples: float, rng: random.Random) -> ReplayJob:
    like = rng.choice(preset_jobs("imagenet", 7))
    return ReplayJob(f"J{index:05d}", like.model, index * _SUBMIT_EVERY_S, _UP_S, _DOWN_S, 1, 64, samples, like.curve)


def _architecture(index: int, samples: float, rng: random.Random) -> ReplayJob:
    """A random network: its single-node throughput, and the share of communication in a step.

    Single-node throughput varies by a factor of ten, as for the cells of NAS-Bench-101 on one machine. A ring
    all-reduce adds between nothing (few weights) and as much as the computation (many weights, few operations).
    """
    single = math.exp(rng.uniform(math.log(700.0), math.log(7000.0)))
    bandwidth = rng.choice((0.02, 0.1, 0.3, 1.0)) * rng.uniform(0.5, 1.5)
    latency = math.exp(rng.uniform(math.log(0.0003), math.log(0.03)))
    curve = tuple(ScalingPoint(n, n * single / (1.0 + bandwidth * (n - 1) / n + latency * (n - 1))) for n in _SCALES)
    return ReplayJob(f"N{index:05d}", f"net{index}", index * _SUBMIT_EVERY_S, _UP_S, _DOWN_S, 1, 64, samples, curve)
