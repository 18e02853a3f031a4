"""The replays of BFTrainer's evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.problem.allocation_problem import ObjectiveMetric
from malletrain.reproduce.bftrainer.published import PARALLEL
from malletrain.simulator.replay.evaluation import Evaluation, Scenario, evaluate
from malletrain.simulator.replay.job_set import ReplayJob, Workload
from malletrain.simulator.replay.options import ReplayOptions, ReplayPolicy

FORWARD_S = (10, 30, 60, 90, 120, 180, 240, 300, 420, 600)
MIX_FORWARD_S = (10, 60, 120, 300, 600)
COST_FACTORS = (1, 2, 4, 6, 8, 10)
MODEL_HOURS = 60.0
_HOUR_S = 3600.0


@dataclass(frozen=True)
class JobSets:
    """Two job sets.

    Attributes:
        hpo: Trials of one model (section 5.1).
        mix: Jobs of several models (section 5.2).
    """

    hpo: Workload
    mix: Workload

    @property
    def models(self) -> Mapping[str, ReplayJob]:
        """The first job of each model of the mix."""
        found: dict[str, ReplayJob] = {}
        for job in self.mix.jobs:
            found.setdefault(job.model, job)
        return found


@dataclass(frozen=True)
class Experiment:
    """One replay.

    Attributes:
        name: Its unique name.
        jobs: Jobs in the order of submission.
        options: Options of the replay.
        bound: Whether to replay with free rescaling too.
    """

    name: str
    jobs: tuple[ReplayJob, ...]
    options: ReplayOptions
    bound: bool = False


def perform(scenario: Scenario, experiment: Experiment) -> Evaluation:
    """Run one experiment. The scenario is cut if the experiment is shorter."""
    duration_s = experiment.options.duration_s
    if duration_s < scenario.duration_s:
        scenario = scenario.until(duration_s)
    return evaluate(scenario, experiment.jobs, experiment.options, bound=experiment.bound)


def all_experiments(job_sets: JobSets, base: ReplayOptions) -> list[Experiment]:
    """All replays that the figures need; `base` sets duration, accounting and cost model."""
    trials = replace(base, repeat_jobs=job_sets.hpo.repeats)
    found = [
        Experiment("hpo equal", job_sets.hpo.jobs, replace(trials, policy=ReplayPolicy.EQUAL)),
        *(
            Experiment(hpo_name(forward_s), job_sets.hpo.jobs, replace(trials, forward_s=forward_s), forward_s == 120)
            for forward_s in FORWARD_S
        ),
        *_costs(job_sets, trials),
        *_models(job_sets, trials),
    ]
    mixes = replace(base, repeat_jobs=job_sets.mix.repeats)
    for metric in ObjectiveMetric:
        found += _mixes(job_sets, replace(mixes, metric=metric))
    return found


def hpo_name(forward_s: float) -> str:
    """Name of the experiment with one T_fwd in seconds."""
    return f"hpo forward {forward_s:g}"


def cost_name(factor: float, growths_only: bool = False) -> str:
    """Name of the experiment with stalls multiplied by a factor: all of them, or those of growths."""
    return hpo_name(120) if factor == 1 else f"hpo {'growth ' if growths_only else ''}costs x{factor:g}"


def model_name(model: str) -> str:
    """Name of the experiment with trials of one model."""
    return f"hpo model {model}"


def mix_name(metric: ObjectiveMetric, forward_s: float = 120, parallel: int = 10) -> str:
    """Name of an experiment with several models."""
    return f"mix {metric} forward {forward_s:g} parallel {parallel}"


def _costs(job_sets: JobSets, base: ReplayOptions) -> list[Experiment]:
    jobs, factors = job_sets.hpo.jobs, [factor for factor in COST_FACTORS if factor != 1]
    return [
        *(Experiment(cost_name(factor), tuple(job.with_costs(factor) for job in jobs), base) for factor in factors),
        *(Experiment(cost_name(factor, True), _dearer_growths(jobs, factor), base) for factor in factors),
    ]


def _dearer_growths(jobs: Sequence[ReplayJob], factor: float) -> tuple[ReplayJob, ...]:
    return tuple(replace(job, scale_up_s=factor * job.scale_up_s) for job in jobs)


def _models(job_sets: JobSets, base: ReplayOptions) -> list[Experiment]:
    shorter = replace(base, duration_s=min(base.duration_s, MODEL_HOURS * _HOUR_S))
    return [
        Experiment(model_name(model), _trials(job_sets.hpo.jobs, job), shorter)
        for model, job in job_sets.models.items()
    ]


def _trials(hpo: Sequence[ReplayJob], like: ReplayJob) -> tuple[ReplayJob, ...]:
    return tuple(replace(job, model=like.model, curve=like.curve) for job in hpo)


def _mixes(job_sets: JobSets, base: ReplayOptions) -> list[Experiment]:
    shapes = {(forward_s, 10) for forward_s in MIX_FORWARD_S} | {(120, parallel) for parallel in PARALLEL}
    return [
        Experiment(
            mix_name(base.metric, forward_s, parallel),
            job_sets.mix.jobs,
            replace(base, forward_s=forward_s, max_parallel=parallel),
        )
        for forward_s, parallel in sorted(shapes)
    ]
