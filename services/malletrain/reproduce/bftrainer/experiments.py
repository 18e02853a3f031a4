"""The replays of BFTrainer's evaluation, and what the paper (Liu et al.) reports as numbers in its text and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.problem.allocation_problem import ObjectiveMetric
from malletrain.simulator.replay.evaluation import Evaluation, Scenario, evaluate
from malletrain.simulator.replay.job_set import ReplayJob, Workload
from malletrain.simulator.replay.options import ReplayOptions, ReplayPolicy

PARALLEL = (5, 10, 15, 20, 25, 30, 35)

TABLE_1: Mapping[str, tuple[float, float, float, float]] = {
    "Summit (2 months)": (41.7, 28.6, 0.111, 524.0),
    "Summit (2 weeks)": (14049 / 336, 10573 / 336, 0.086, 407.0),
    "Theta (1 year)": (6.3, 6.2, 0.125, 547.0),
    "Mira (1 year)": (2.8, 2.4, 0.103, 5071.0),
}
"""INC/h, DEC/h, idle ratio, equivalent nodes."""

TABLE_3: Mapping[str, tuple[float, ...]] = {
    "AlexNet": (0.5, 0.6, 0.5, 0.6, 0.5, 0.5, 0.6),
    "ResNet18": (0.4, 0.4, 0.4, 0.4, 0.5, 0.5, 0.5),
    "MnasNet": (0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1.1),
    "MobileNets": (0.8, 0.9, 0.8, 0.9, 1.0, 1.2, 1.4),
    "ShuffleNet": (0.9, 1.0, 0.9, 1.2, 1.4, 1.6, 1.8),
    "VGG-16": (2.3, 3.4, 4.1, 5.4, 6.1, 6.3, 7.4),
    "DenseNet": (4.1, 9.5, 16.1, 22.4, 29.2, 36.3, 42.3),
}
"""Mean runtime in hours by model, for 5 to 35 parallel jobs, with throughput as metric."""

TABLE_4: Mapping[str, tuple[float, ...]] = {
    "VGG-16": (1.98, 2.8, 3.3, 3.8, 4.5, 5.0, 5.2),
    "DenseNet": (2.58, 3.4, 4.6, 5.2, 6.4, 6.5, 7.8),
    "ResNet18": (0.77, 1.1, 1.5, 1.9, 2.1, 2.4, 2.6),
    "MobileNets": (0.89, 1.8, 2.7, 3.8, 4.7, 5.9, 7.4),
    "ShuffleNet": (1.15, 2.1, 2.9, 4.2, 5.4, 7.2, 8.5),
    "MnasNet": (1.15, 2.3, 3.8, 5.5, 7.0, 9.4, 10.7),
    "AlexNet": (0.94, 2.4, 3.9, 5.3, 6.8, 7.6, 8.8),
}
"""The same with scaling efficiency as metric."""

EFFICIENCY = {"milp": 0.80, "equal": 0.75}
"""U over a week of HPO, T_fwd 120 s (sections 5.1.2)."""

MODEL_EFFICIENCY = {"AlexNet": 0.75, "DenseNet": 0.83}
"""U of HPO over 60 hours, worst and best model (section 5.4.1)."""

PREEMPTED_WITHIN = (170.0, 0.9)
"""T_fwd in seconds from which on a preemption follows in this share of cases (Fig. 7a)."""

EQUAL_COST_PER_EVENT, TIMES_MILP = 1.03e6, 76.0
"""Samples that the baseline spends on rescaling per event, and how many times what the MILP does at 10 s (Fig. 7b)."""

UNOCCUPIED = {5: 0.124, 10: 0.021}
"""Share of the idle node-hours that no job holds, by parallel jobs (Fig. 14)."""

SHORT_FRAGMENTS = (0.58, 0.10)
"""Share of fragments under ten minutes, and of the node-time in them (section 2.1)."""

WORSE_EVENTS, TWICE_EVENTS, FIVE_TIMES_EVENTS = 0.069, 0.11, 0.03
"""Share of events at which the MILP is worse than the baseline, twice as good, five times as good (section 5.1.2)."""


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
        by_model: dict[str, ReplayJob] = {}
        for job in self.mix.jobs:
            by_model.setdefault(job.model, job)
        return by_model


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
    experiments = [
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
        experiments += _mixes(job_sets, replace(mixes, metric=metric))
    return experiments


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
        *(
            Experiment(
                cost_name(factor, True), tuple(replace(job, scale_up_s=factor * job.scale_up_s) for job in jobs), base
            )
            for factor in factors
        ),
    ]


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
