"""MalleTrain's evaluation: its workloads (section 4.1.1), and the systems that are compared on them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from malletrain.model.scaling import ScalingPoint
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.simulator.profiling.advisor import Declare, LearningOptions, ProfilingAdvisor
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
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


class System(StrEnum):
    """A scheduling system and what it knows of the curves."""

    TRUE = "FreeTrain, true curves"
    LINEAR = "FreeTrain, linear guesses"
    OTHER = "FreeTrain, another model's curve"
    FAMILY = "FreeTrain, the family's curve"
    STALE = "FreeTrain, stale curves"
    PRIOR = "MalleTrain, no profiles"
    CAUTIOUS = "MalleTrain, no profiles, lower bound"
    PROFILED = "MalleTrain"
    PROFILED_FAMILIES = "MalleTrain, families"


GUESSES = (System.LINEAR, System.OTHER, System.FAMILY, System.STALE)


@dataclass(frozen=True)
class Trial:
    """One replay: a system and the jobs that it schedules."""

    system: System
    mix: Mix
    options: ReplayOptions


@dataclass(frozen=True)
class Score:
    """Result of a trial.

    Attributes:
        samples: Samples processed, net.
        profiles: Profile runs that began.
        done: Profile runs that were completed.
        growths: Growths of all profile runs.
        node_seconds: Node-seconds held by jobs while they were profiled.
        interruptions: Fewest and most interruptions of the jobs that were admitted at the end.
    """

    samples: float
    profiles: int = 0
    done: int = 0
    growths: int = 0
    node_seconds: float = 0.0
    interruptions: tuple[int, int] = (0, 0)


def score(scenario: Scenario, trial: Trial) -> Score:
    """Run one trial."""
    jobs = trial.mix.jobs()
    learning = _learning(trial.system, jobs)
    advisor = ProfilingAdvisor(learning, trial.options, len(scenario.nodes), np.random.default_rng(trial.mix.seed))
    result = run_replay(scenario.events, scenario.nodes, jobs, trial.options, advisor=advisor)
    runs: list[ProfileRun] = [
        *advisor.ended,
        *(run for run in advisor.state.runs.values() if run.began is not None),
    ]
    counts = list(advisor.state.interruptions.counts.values())
    return Score(
        samples=sum(job.samples for job in result.jobs),
        profiles=len(runs),
        done=sum(run.state is ProfileRunState.DONE for run in runs),
        growths=sum(run.growths for run in runs),
        node_seconds=sum(run.node_seconds for run in runs),
        interruptions=(min(counts, default=0), max(counts, default=0)),
    )


def _learning(system: System, jobs: Sequence[ReplayJob]) -> LearningOptions:
    if system in (System.PROFILED, System.PROFILED_FAMILIES):
        family = (lambda job: job.model) if system is System.PROFILED_FAMILIES else (lambda _: "")
        return LearningOptions(mode=ProfilingMode.AUTO, family=family)
    if system in (System.PRIOR, System.CAUTIOUS):
        return LearningOptions(mode=ProfilingMode.NEVER, caution=1.0 if system is System.CAUTIOUS else 0.0)
    declares: dict[System, Declare] = {
        System.TRUE: lambda job: job.curve,
        System.LINEAR: _linear,
        System.OTHER: _another,
        System.FAMILY: partial(_typical, curve=_mean_curve(jobs)),
        System.STALE: _stale,
    }
    return LearningOptions(settings=ProfilerSettings(), mode=ProfilingMode.NEVER, learn=False, declare=declares[system])


def _linear(job: ReplayJob) -> tuple[ScalingPoint, ...]:
    """Measured on one node and extrapolated linearly."""
    return tuple(ScalingPoint(n, n * job.curve[0].rate) for n in (1, job.max_nodes))


def _another(job: ReplayJob) -> tuple[ScalingPoint, ...]:
    """The published curve of another model, the same for every job."""
    del job
    return preset_jobs("hpo", 1)[0].curve


def _typical(job: ReplayJob, curve: tuple[ScalingPoint, ...]) -> tuple[ScalingPoint, ...]:
    """The mean curve of all jobs."""
    del job
    return curve


def _stale(job: ReplayJob) -> tuple[ScalingPoint, ...]:
    """Measured on an older machine: half as fast on one node, with a slower network that affects jobs differently."""
    slow = 0.002 + 0.01 * (sum(map(ord, job.id)) % 7) / 7
    return tuple(ScalingPoint(p.nodes, 0.5 * p.rate / (1.0 + slow * (p.nodes - 1))) for p in job.curve)


def _mean_curve(jobs: Sequence[ReplayJob]) -> tuple[ScalingPoint, ...]:
    first = jobs[0].curve
    return tuple(
        ScalingPoint(point.nodes, sum(job.curve[index].rate for job in jobs) / len(jobs))
        for index, point in enumerate(first)
    )
