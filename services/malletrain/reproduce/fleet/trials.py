"""FLEET's evaluation: what Guan et al. (MLSys 2020) report, one simulation, and which of them the exhibits need.

Tables are as printed. Rates, epochs and figures are read off the vector drawings, and so within 1 %.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from malletrain.fleet.baselines import list_schedule, longest_first, rounds, sequential
from malletrain.fleet.lifecycle import FleetRun, fleet_global
from malletrain.fleet.local import fleet_local
from malletrain.fleet.lower_bound import lower_bound
from malletrain.fleet.makespan import makespan
from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetProblem, Pace, RateTolerance
from malletrain.fleet.rates import RateTable, rate_table

GPUS = (20, 40, 60, 80, 100, 120, 140, 160)
GPUS_PER_NODE, SAMPLES_PER_EPOCH, CHECKPOINT_SECONDS = 4, 30_606, 34.0
"""Four P100 in a node; Caltech256; what one checkpoint of a flotilla took by the sums of Table 4."""

_MEMBERS = """
149.1x14 141.2x14 130.4x13 124.6x12 117.3x13 176x14 102.6x12 101x14 142.4x17 98.4x13 142.2x14 146.9x15 92.5x14
140.1x14 90.5x13 86.7x13 84.8x12 78.5x12 77.6x12 73.8x16 68.2x13 66.9x14 63.3x15 62.8x14 61.9x14 59.5x14 58.9x15
55.6x15 54x13 72x19 56.3x13 70.8x20 68.3x17 69.2x19 52x13 52.3x13 66.8x21 51.1x14 67x19 71.4x19 68.4x20 69.1x19
68.2x17 49x16 66.5x18 65.1x21 47.8x16 48x12 48x14 46.4x14 46.6x15 44.3x13 42.6x12 50.6x19 50.7x21 43.5x15
53.8x19 51.3x21 54x19 50.8x21 50.8x22 50.7x21 40x17 51.2x24 50x20 37.3x14 41.7x20 41.6x11 34.2x15 41.5x11
42.1x21 45.4x21 42.8x21 41.8x20 35.2x17 42.3x21 42.8x17 41.1x21 35x12 30.3x12 36.9x12 28.7x11 35.6x11 33.6x11
34.2x11 29.4x11 37.3x12 35.4x13 35x12 35.4x11 32.9x11 33.5x11 33.6x11 26.3x11 32.7x12 26.6x11 23.6x13 23.5x12
21.9x13 21.3x14
"""
MEMBERS: tuple[tuple[float, int], ...] = tuple(
    (float(rate), int(epochs)) for rate, _, epochs in (member.partition("x") for member in _MEMBERS.split())
)
"""Samples/s on one GPU and epochs of each network, the smallest first (Fig. 7 to 9)."""

CURVES: tuple[tuple[float, ...], ...] = (
    (26.3, 42.5, 63.7, 83.0, 101.9, 119.7, 135.8, 150.1),
    (30.3, 48.8, 72.8, 95.3, 114.6, 135.0, 153.0, 169.2),
    (43.5, 75.3, 111.4, 145.5, 179.3, 214.2, 248.1, 281.9),
    (44.3, 77.1, 114.5, 151.0, 187.1, 223.4, 258.8, 294.9),
    (46.6, 81.5, 121.1, 159.6, 197.3, 234.8, 272.8, 310.9),
    (48.1, 83.9, 124.4, 163.8, 202.6, 241.7, 280.4, 319.2),
    (55.6, 96.0, 141.9, 188.2, 228.1, 270.8, 313.3, 350.6),
    (59.0, 104.1, 154.4, 202.5, 252.4, 301.1, 349.6, 395.6),
    (59.6, 105.0, 156.1, 206.2, 254.2, 302.7, 349.3, 397.8),
    (63.4, 110.9, 164.7, 217.6, 270.4, 323.0, 372.7, 424.5),
    (68.3, 120.6, 177.0, 234.4, 287.7, 343.5, 399.6, 452.6),
    (85.0, 153.2, 228.2, 303.3, 375.2, 449.2, 520.8, 595.2),
    (86.9, 150.6, 222.1, 295.0, 361.6, 429.9, 501.5, 573.8),
    (98.6, 178.2, 265.5, 349.2, 433.6, 519.0, 602.1, 685.8),
    (101.1, 183.4, 271.9, 359.1, 444.0, 531.4, 618.8, 702.7),
    (117.5, 210.9, 312.0, 413.1, 510.4, 612.2, 710.9, 809.4),
    (124.9, 226.4, 334.4, 440.6, 547.9, 655.2, 757.0, 861.5),
    (130.6, 234.5, 347.5, 459.0, 567.2, 681.4, 788.8, 899.7),
    (141.5, 252.9, 372.3, 492.0, 611.3, 730.3, 849.4, 965.5),
    (149.4, 270.0, 397.0, 523.7, 651.1, 777.2, 906.1, 1031.1),
)
"""Samples/s at 1 to 8 GPUs of 20 networks, the slowest first (Fig. 7 to 9)."""

FLEET_SECONDS = (55_200.1, 30_204.8, 24_495.0, 21_891.0, 18_359.1, 15_323.9, 13_366.3, 11_825.2)
"""FLEET-G: time to train everything, scheduling included, by GPUs (Table 4)."""
FLOTILLAS = (44, 34, 29, 24, 23, 20, 20, 22)
"""Not printed: the checkpoint times of Table 4 over 34 s."""
SPEEDUPS: Mapping[str, tuple[float, ...]] = {
    "homogeneous": (0.655, 0.61, 0.664, 0.535, 1.0, 0.998, 0.997, 0.999),
    "fleet-local": (1.163, 1.09, 1.039, 0.89, 0.958, 1.112, 1.581, 1.67),
    "fleet": (1.13, 1.202, 1.135, 1.038, 1.238, 1.484, 1.701, 1.923),
}
"""Over one GPU for each network in random order, by GPUs (Fig. 5)."""
WAITING: Mapping[str, tuple[float | None, ...]] = {
    "homogeneous": (457.0, 346.0, 247.0, 301.0, 126.0, 126.0, 126.0, 126.0),
    "fleet-local": (28.9, 89.7, 153.0, 89.7, 75.0, 153.0, 45.7, 55.7),
    "fleet": (16.9, 6.66, 4.48, 4.39, 1.87, 1.23, 1.47, None),
}
"""Waiting time per GPU as drawn (Fig. 6); it fits the other figures only if the axis means hundreds of seconds."""
RUN_LENGTHS: Mapping[str, tuple[float, float]] = {
    "one GPU each": (10_372.2, 4_178.9),
    "FLEET-L": (6_213.0, 3_580.0),
}
FLOTILLA_LENGTHS = ((2067.9, 54.7), (335.6, 48.4), (2291.9, 26.0), (415.5, 51.9), (1072.2, 364.0), (2322.3, 216.0))
"""Mean and standard deviation of run lengths in seconds at 80 GPUs: of all members, and of flotillas (Table 3)."""


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
            EnsembleModel(f"d{place:03d}", _rates(rate), epochs) for place, (rate, epochs) in enumerate(MEMBERS)
        ),
        gpus=gpus,
        gpus_per_node=GPUS_PER_NODE,
        samples_per_epoch=SAMPLES_PER_EPOCH,
        checkpoint_seconds=CHECKPOINT_SECONDS,
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
    slower = bisect_left([curve[0] for curve in CURVES], single)
    if slower in (0, len(CURVES)):
        ends = CURVES[max(0, slower - 1)]
        return tuple(round(single * rate / ends[0], 2) for rate in ends)
    below, above = CURVES[slower - 1], CURVES[slower]
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


def _shuffle(problem: FleetProblem, rng: random.Random) -> list[int]:
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
    "random order": lambda p, t, _, rng: list_schedule(p, _shuffle(p, rng), t),
    "longest first": lambda p, t, trial, _: list_schedule(p, _longest(p, epochs_known=trial.epochs_known), t),
    "one after the other": lambda p, t, *_: sequential(p, t),
    "homogeneous": lambda p, t, _, rng: rounds(replace(p, pace=Pace.OWN), _shuffle(p, rng), t),
    "fleet-local": lambda p, t, *_: fleet_local(p, t),
    "fleet, to the letter": lambda p, t, *_: fleet_global(replace(p, beyond_peak=BeyondPeak.ALLOW), t),
    "fleet": lambda p, t, *_: fleet_global(p, t),
    "makespan": _by_remaining_work,
    "lower bound": _bound,
}
"""Ways to divide GPUs. On one GPU each, every network preprocesses for itself; flotillas share."""


RANDOM = ("random order", "homogeneous")
SINGLE = ("longest first", "one after the other", "fleet-local", "fleet, to the letter", "fleet", "lower bound")
SOME_GPUS = (20, 40, 60, 80, 160)
RIVALS = ("fleet", "longest first", "makespan")
PREPROCESS = (10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0)
"""Samples/s for each GPU."""
TOLERANCES = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0)
SHARES = (0.0, 0.25, 0.5, 0.8, 0.9, 1.0)
NOISES = (0.0, 0.05, 0.2)


@dataclass(frozen=True)
class FleetPlanOfTrials:
    """The size of an evaluation.

    Attributes:
        orders: Random orders of the networks.
        seeds: Draws of noise.
    """

    orders: int
    seeds: int

    def trials(self) -> list[FleetTrial]:
        """All simulations, each once."""
        trials = [FleetTrial(how, gpus, seed=seed) for how in RANDOM for gpus in GPUS for seed in range(self.orders)]
        trials += [FleetTrial(how, gpus) for how in SINGLE for gpus in GPUS]
        trials += [
            FleetTrial(how, gpus, epochs_known=known) for how in RIVALS for gpus in GPUS for known in (False, True)
        ]
        for gpus in SOME_GPUS:
            trials += [FleetTrial(how, gpus, rate) for how in (*RIVALS, "lower bound") for rate in PREPROCESS]
            trials += [FleetTrial("fleet", gpus, tolerance=value) for value in TOLERANCES]
            trials += [FleetTrial("fleet", gpus, active_share=value) for value in SHARES]
            trials += [trial for how in RIVALS for noise in NOISES for trial in self.noisy(how, gpus, noise)]
        return list(dict.fromkeys(trials))

    def noisy(self, how: str, gpus: int, noise: float) -> list[FleetTrial]:
        """Simulations with as many draws of noise."""
        return [FleetTrial(how, gpus, noise=noise, seed=seed) for seed in range(self.seeds if noise else 1)]


@dataclass(frozen=True)
class FleetResults:
    """The plan and what its simulations found."""

    plan: FleetPlanOfTrials
    by_trial: Mapping[FleetTrial, FleetTrialResult]

    def one(self, trial: FleetTrial) -> FleetTrialResult:
        """The result of a simulation."""
        return self.by_trial[trial]

    def of(self, how: str, gpus: int) -> FleetTrialResult:
        """The result with the paper's settings; of random orders the means."""
        if how == "makespan":
            # Nobody knows epochs beforehand; the other ways of this kind do not ask for them.
            return self.by_trial[FleetTrial(how, gpus, epochs_known=False)]
        if how not in RANDOM:
            return self.by_trial[FleetTrial(how, gpus)]
        every = [self.by_trial[FleetTrial(how, gpus, seed=seed)] for seed in range(self.plan.orders)]
        return FleetTrialResult(
            fmean(result.seconds for result in every), every[0].flotillas, fmean(result.waiting for result in every)
        )

    def seconds(self, trials: Sequence[FleetTrial]) -> list[float]:
        """Times to train everything."""
        return [self.by_trial[trial].seconds for trial in trials]
