"""Which replays BFTrainer's evaluation consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.problem import ObjectiveMetric
from malletrain.simulator.replay.evaluation import Evaluated, Scene, evaluate
from malletrain.simulator.replay.options import Options, Policy
from malletrain.simulator.replay.workload import TraceJob
from malletrain.simulator.reproduce.published import PARALLEL

FORWARD_S = (10, 30, 60, 90, 120, 180, 240, 300, 420, 600)
MIX_FORWARD_S = (10, 60, 120, 300, 600)
COST_FACTORS = (1, 2, 4, 6, 8, 10)
MODEL_HOURS = 60.0
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Workloads:
    """Two job sets.

    Attributes:
        hpo: Trials of one model (section 5.1).
        mix: Jobs of several models (section 5.2).
    """

    hpo: tuple[TraceJob, ...]
    mix: tuple[TraceJob, ...]

    @property
    def models(self) -> Mapping[str, TraceJob]:
        """The first job of each model of the mix."""
        found: dict[str, TraceJob] = {}
        for job in self.mix:
            found.setdefault(job.model, job)
        return found


@dataclass(frozen=True)
class Experiment:
    """One replay.

    Attributes:
        name: Identifies it.
        jobs: Jobs in the order of submission.
        options: What to do.
        bound: Replay with free rescaling too.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    options: Options
    bound: bool = False


def perform(scene: Scene, experiment: Experiment) -> Evaluated:
    """Run one experiment; the scene is cut where the experiment is shorter."""
    duration_s = experiment.options.duration_s
    if duration_s < scene.duration_s:
        events = tuple(event for event in scene.events if event.time_s < duration_s)
        scene = Scene(scene.nodes, events, duration_s)
    return evaluate(scene, experiment.jobs, experiment.options, bound=experiment.bound)


def all_experiments(workloads: Workloads, base: Options) -> list[Experiment]:
    """Every replay that the figures need; `base` gives duration, accounting and cost model."""
    found = [
        Experiment("hpo equal", workloads.hpo, replace(base, policy=Policy.EQUAL)),
        *(
            Experiment(hpo_name(forward_s), workloads.hpo, replace(base, forward_s=forward_s), forward_s == 120)
            for forward_s in FORWARD_S
        ),
        *_costs(workloads, base),
        *_models(workloads, base),
    ]
    for metric in ObjectiveMetric:
        found += _mixes(workloads, replace(base, metric=metric))
    return found


def hpo_name(forward_s: float) -> str:
    """Name of the experiment with one T_fwd in seconds."""
    return f"hpo forward {forward_s:g}"


def cost_name(factor: float) -> str:
    """Name of the experiment with dearer rescaling."""
    return hpo_name(120) if factor == 1 else f"hpo costs x{factor:g}"


def model_name(model: str) -> str:
    """Name of the experiment with trials of one model."""
    return f"hpo model {model}"


def mix_name(metric: ObjectiveMetric, forward_s: float = 120, parallel: int = 10) -> str:
    """Name of an experiment with several models."""
    return f"mix {metric} forward {forward_s:g} parallel {parallel}"


def _costs(workloads: Workloads, base: Options) -> list[Experiment]:
    return [
        Experiment(cost_name(factor), tuple(job.with_costs(factor) for job in workloads.hpo), base)
        for factor in COST_FACTORS
        if factor != 1
    ]


def _models(workloads: Workloads, base: Options) -> list[Experiment]:
    shorter = replace(base, duration_s=min(base.duration_s, MODEL_HOURS * _HOUR_S))
    return [
        Experiment(model_name(model), _trials(workloads.hpo, job), shorter) for model, job in workloads.models.items()
    ]


def _trials(hpo: Sequence[TraceJob], like: TraceJob) -> tuple[TraceJob, ...]:
    return tuple(replace(job, model=like.model, curve=like.curve) for job in hpo)


def _mixes(workloads: Workloads, base: Options) -> list[Experiment]:
    shapes = {(forward_s, 10) for forward_s in MIX_FORWARD_S} | {(120, parallel) for parallel in PARALLEL}
    return [
        Experiment(
            mix_name(base.metric, forward_s, parallel),
            workloads.mix,
            replace(base, forward_s=forward_s, max_parallel=parallel),
        )
        for forward_s, parallel in sorted(shapes)
    ]
