"""Which simulations FLEET's evaluation needs, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from malletrain.reproduce.fleet.published import GPUS
from malletrain.reproduce.fleet.trials import FleetTrial, FleetTrialResult

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
        found = [FleetTrial(how, gpus, seed=seed) for how in RANDOM for gpus in GPUS for seed in range(self.orders)]
        found += [FleetTrial(how, gpus) for how in SINGLE for gpus in GPUS]
        found += [known_or_not(how, gpus, known=known) for how in RIVALS for gpus in GPUS for known in (False, True)]
        for gpus in SOME_GPUS:
            found += [FleetTrial(how, gpus, rate) for how in (*RIVALS, "lower bound") for rate in PREPROCESS]
            found += [FleetTrial("fleet", gpus, tolerance=value) for value in TOLERANCES]
            found += [FleetTrial("fleet", gpus, active_share=value) for value in SHARES]
            found += [trial for how in RIVALS for noise in NOISES for trial in self.noisy(how, gpus, noise)]
        return list(dict.fromkeys(found))

    def noisy(self, how: str, gpus: int, noise: float) -> list[FleetTrial]:
        """Simulations with as many draws of noise."""
        return [FleetTrial(how, gpus, noise=noise, seed=seed) for seed in range(self.seeds if noise else 1)]


def known_or_not(how: str, gpus: int, *, known: bool) -> FleetTrial:
    """A simulation with known or unknown epochs."""
    return FleetTrial(how, gpus, epochs_known=known)


@dataclass(frozen=True)
class FleetResults:
    """The plan and what its simulations found."""

    plan: FleetPlanOfTrials
    found: Mapping[FleetTrial, FleetTrialResult]

    def one(self, trial: FleetTrial) -> FleetTrialResult:
        """The result of a simulation."""
        return self.found[trial]

    def of(self, how: str, gpus: int) -> FleetTrialResult:
        """The result with the paper's settings; of random orders the means."""
        if how == "makespan":
            # Nobody knows epochs beforehand; the other ways of this kind do not ask for them.
            return self.found[known_or_not(how, gpus, known=False)]
        if how not in RANDOM:
            return self.found[FleetTrial(how, gpus)]
        every = [self.found[FleetTrial(how, gpus, seed=seed)] for seed in range(self.plan.orders)]
        return FleetTrialResult(
            fmean(result.seconds for result in every), every[0].flotillas, fmean(result.waiting for result in every)
        )

    def seconds(self, trials: Sequence[FleetTrial]) -> list[float]:
        """Times to train everything."""
        return [self.found[trial].seconds for trial in trials]
