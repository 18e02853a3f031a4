"""One simulation of FLEET's evaluation: the published ensemble, one way to divide GPUs, and what is believed of it."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from malletrain.fleet.baselines import list_schedule, longest_first, rounds, sequential
from malletrain.fleet.lifecycle import FleetRun, fleet_global
from malletrain.fleet.local import fleet_local
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.makespan import makespan
from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetProblem, Pace, RateTolerance
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.reproduce.fleet import published

BELIEVED_EPOCHS = 24
"""Most epochs of any network: what planners believe of all of them where epochs are not known."""


@dataclass(frozen=True)
class FleetTrial:
    """A simulation.

    Attributes:
        how: A name in `WAYS`.
        gpus: GPUs.
        preprocess_per_gpu: Samples/s that all CPUs together preprocess, for each GPU; 0: no limit.
        tolerance: δ in samples/s.
        active_share: α.
        noise: Standard deviation of what planners believe of a rate, as a share of it.
        epochs_known: Whether planners know the epochs of each network.
        seed: Of the order and of the noise.
    """

    how: str
    gpus: int
    preprocess_per_gpu: float = 0.0
    tolerance: float = 20.0
    active_share: float = 0.8
    noise: float = 0.0
    epochs_known: bool = True
    seed: int = 0


@dataclass(frozen=True)
class FleetTrialResult:
    """What a simulation finds.

    Attributes:
        seconds: Time to train everything.
        flotillas: Number of flotillas; 0 where there are none.
        waiting: GPU-seconds for which members that were done waited for others, for each GPU.
        lengths: Mean and standard deviation of run lengths in seconds, of each flotilla.
        all_lengths: The same of all runs of members in flotillas; None where there are none.
    """

    seconds: float
    flotillas: int = 0
    waiting: float = 0.0
    lengths: tuple[tuple[float, float], ...] = ()
    all_lengths: tuple[float, float] | None = None


def published_problem(gpus: int) -> FleetProblem:
    """The published ensemble: between its curves, efficiency is linear in the logarithm of the rate on one GPU."""
    return FleetProblem(
        models=tuple(
            EnsembleModel(f"d{place:03d}", _rates(rate), epochs)
            for place, (rate, epochs) in enumerate(published.MEMBERS)
        ),
        gpus=gpus,
        gpus_per_node=published.GPUS_PER_NODE,
        samples_per_epoch=published.SAMPLES_PER_EPOCH,
        checkpoint_seconds=published.CHECKPOINT_SECONDS,
    )


def run_fleet_trial(trial: FleetTrial) -> FleetTrialResult:
    """Run a simulation."""
    real = replace(
        published_problem(trial.gpus),
        tolerance=RateTolerance(trial.tolerance),
        active_share=trial.active_share,
        preprocess_rate=trial.preprocess_per_gpu * trial.gpus,
    )
    rng = random.Random(trial.seed)
    believed = _with_noise(real, trial.noise, rng) if trial.noise else real
    run = WAYS[trial.how](believed, rate_table(real), trial, rng)
    lengths = [
        [min(run.ends_s[member], flotilla.end_s) - flotilla.start_s for member in flotilla.members]
        for flotilla in run.flotillas
    ]
    every = [length for flotilla in lengths for length in flotilla]
    return FleetTrialResult(
        run.seconds,
        len(run.flotillas),
        run.waiting_gpu_seconds / trial.gpus,
        tuple((fmean(one), pstdev(one)) for one in lengths),
        (fmean(every), pstdev(every)) if every else None,
    )


def _rates(single: float) -> tuple[float, ...]:
    """Samples/s of a network on 1 to 8 GPUs, rounded as published."""
    slower = bisect_left([curve[0] for curve in published.CURVES], single)
    if slower in (0, len(published.CURVES)):
        ends = published.CURVES[max(0, slower - 1)]
        return tuple(round(single * rate / ends[0], 2) for rate in ends)
    below, above = published.CURVES[slower - 1], published.CURVES[slower]
    weight = math.log(single / below[0]) / math.log(above[0] / below[0])
    return tuple(
        round(single * ((1 - weight) * few / below[0] + weight * more / above[0]), 2)
        for few, more in zip(below, above, strict=True)
    )


def _with_noise(problem: FleetProblem, spread: float, rng: random.Random) -> FleetProblem:
    models = tuple(
        replace(model, rates=tuple(rate * math.exp(rng.gauss(0.0, spread)) for rate in model.rates))
        for model in problem.models
    )
    return replace(problem, models=models)


def _shuffled(problem: FleetProblem, rng: random.Random) -> list[int]:
    order = list(range(len(problem.models)))
    rng.shuffle(order)
    return order


def _longest(problem: FleetProblem, *, epochs_known: bool) -> Sequence[int]:
    work = dict(enumerate(problem.samples() if epochs_known else [1.0] * len(problem.models)))
    return longest_first(work, rate_table(problem))


def _by_remaining_work(believed: FleetProblem, actual: RateTable, trial: FleetTrial, _: random.Random) -> FleetRun:
    epoch = believed.samples_per_epoch

    def guess(_: int, trained: float) -> float:
        return max(BELIEVED_EPOCHS * epoch - trained, epoch)

    return makespan(believed, None if trial.epochs_known else guess, actual=actual)


def _bound(believed: FleetProblem, *_: object) -> FleetRun:
    return FleetRun(lower_bound(believed), ())


WAYS: dict[str, Callable[[FleetProblem, RateTable, FleetTrial, random.Random], FleetRun]] = {
    "random order": lambda p, t, _, rng: list_schedule(p, _shuffled(p, rng), t),
    "longest first": lambda p, t, trial, _: list_schedule(p, _longest(p, epochs_known=trial.epochs_known), t),
    "one after the other": lambda p, t, *_: sequential(p, t),
    "homogeneous": lambda p, t, _, rng: rounds(replace(p, pace=Pace.OWN), _shuffled(p, rng), t),
    "fleet-local": lambda p, t, *_: fleet_local(p, t),
    "fleet, to the letter": lambda p, t, *_: fleet_global(replace(p, beyond_peak=BeyondPeak.ALLOW), t),
    "fleet": lambda p, t, *_: fleet_global(p, t),
    "makespan": _by_remaining_work,
    "lower bound": _bound,
}
"""Ways to divide GPUs. On one GPU each, every network preprocesses for itself; flotillas share."""
