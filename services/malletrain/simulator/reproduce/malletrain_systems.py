"""What is compared: FreeTrain with curves that users give, and MalleTrain, which asks for none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from malletrain.allocator.problem import ScalingPoint
from malletrain.profiler.modes import Mode
from malletrain.profiler.runs import Run, RunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.simulator.profiling.advisor import Declare, Learning, ProfilingAdvisor
from malletrain.simulator.replay.engine import play
from malletrain.simulator.replay.evaluation import Scene
from malletrain.simulator.replay.options import Options
from malletrain.simulator.replay.presets import preset_jobs
from malletrain.simulator.replay.workload import TraceJob
from malletrain.simulator.reproduce.malletrain_workloads import Mix


class System(StrEnum):
    """Who schedules, knowing what."""

    TRUE = "FreeTrain, true curves"
    LINEAR = "FreeTrain, linear guesses"
    OTHER = "FreeTrain, another model's curve"
    FAMILY = "FreeTrain, the family's curve"
    STALE = "FreeTrain, stale curves"
    PRIOR = "MalleTrain, no profiles"
    CAUTIOUS = "MalleTrain, no profiles, lower bound"
    PROFILED = "MalleTrain"
    KIN = "MalleTrain, families"


GUESSES = (System.LINEAR, System.OTHER, System.FAMILY, System.STALE)


@dataclass(frozen=True)
class Trial:
    """One replay: who schedules what."""

    system: System
    mix: Mix
    options: Options


@dataclass(frozen=True)
class Score:
    """What came of it.

    Attributes:
        samples: Samples processed, net.
        profiles: Profiles that were begun.
        done: Those that ended.
        growths: Growths that they took.
        node_seconds: Node-seconds held by jobs while they were profiled.
        interruptions: Fewest and most interruptions of any job that is still there at the end.
    """

    samples: float
    profiles: int = 0
    done: int = 0
    growths: int = 0
    node_seconds: float = 0.0
    interruptions: tuple[int, int] = (0, 0)


def score(scene: Scene, trial: Trial) -> Score:
    """Replay one trial on a scene."""
    jobs = trial.mix.jobs()
    learning = _learning(trial.system, jobs)
    advisor = ProfilingAdvisor(learning, trial.options, len(scene.nodes), np.random.default_rng(trial.mix.seed))
    played = play(scene.events, scene.nodes, jobs, trial.options, advisor=advisor)
    runs: list[Run] = [*advisor.ended, *(run for run in advisor.office.desk.runs.values() if run.began is not None)]
    counts = list(advisor.office.desk.ledger.counts.values())
    return Score(
        samples=sum(job.samples for job in played.jobs),
        profiles=len(runs),
        done=sum(run.state is RunState.DONE for run in runs),
        growths=sum(run.growths for run in runs),
        node_seconds=sum(run.node_seconds for run in runs),
        interruptions=(min(counts, default=0), max(counts, default=0)),
    )


def _learning(system: System, jobs: Sequence[TraceJob]) -> Learning:
    if system in (System.PROFILED, System.KIN):
        family = (lambda job: job.model) if system is System.KIN else (lambda _: "")
        return Learning(mode=Mode.AUTO, family=family)
    if system in (System.PRIOR, System.CAUTIOUS):
        return Learning(mode=Mode.NEVER, caution=1.0 if system is System.CAUTIOUS else 0.0)
    declares: dict[System, Declare] = {
        System.TRUE: lambda job: job.curve,
        System.LINEAR: _linear,
        System.OTHER: _another,
        System.FAMILY: partial(_typical, curve=_mean_curve(jobs)),
        System.STALE: _stale,
    }
    return Learning(settings=ProfilerSettings(), mode=Mode.NEVER, learn=False, declare=declares[system])


def _linear(job: TraceJob) -> tuple[ScalingPoint, ...]:
    """One node was measured; the rest is hope."""
    return tuple(ScalingPoint(n, n * job.curve[0].rate) for n in (1, job.max_nodes))


def _another(job: TraceJob) -> tuple[ScalingPoint, ...]:
    """The curve of a model from a paper: every job looks the same."""
    del job
    return preset_jobs("hpo", 1)[0].curve


def _typical(job: TraceJob, curve: tuple[ScalingPoint, ...]) -> tuple[ScalingPoint, ...]:
    """One curve for all that the search may draw: their mean."""
    del job
    return curve


def _stale(job: TraceJob) -> tuple[ScalingPoint, ...]:
    """Measured on the machine before: half as fast on one node, on a slower network, worse for some than others."""
    slow = 0.002 + 0.01 * (sum(map(ord, job.id)) % 7) / 7
    return tuple(ScalingPoint(p.nodes, 0.5 * p.rate / (1.0 + slow * (p.nodes - 1))) for p in job.curve)


def _mean_curve(jobs: Sequence[TraceJob]) -> tuple[ScalingPoint, ...]:
    first = jobs[0].curve
    return tuple(
        ScalingPoint(point.nodes, sum(job.curve[index].rate for job in jobs) / len(jobs))
        for index, point in enumerate(first)
    )
