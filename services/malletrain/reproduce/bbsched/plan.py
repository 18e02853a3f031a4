"""Which trials BBSched's evaluation needs, and their results by trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.reproduce.bbsched.trials import ORIGINAL, BatchTrial, BatchTrialResult, SiteLog
from malletrain.selection.methods import SelectionMethod
from malletrain.simulator.batch.running import BASELINE
from malletrain.simulator.batch.selecting import ReservedKinds, Starved

METHODS = (
    BASELINE,
    *(
        method.value
        for method in SelectionMethod
        if method not in (SelectionMethod.CONSTRAINED_SSD, SelectionMethod.IN_ORDER)
    ),
)
SSD_METHODS = tuple(
    name for name in (*METHODS[:-2], "constrained-ssd", *METHODS[-2:]) if name not in ("weighted-cpu", "weighted-bb")
)
THETA, YOURS = "theta", "yours"
MACHINES = ("cori", THETA)
RECIPES = (ORIGINAL, "s1", "s2", "s3", "s4")
SSD_RECIPES = ("s5", "s6", "s7")
WINDOWS = (10, 20, 50)
READINGS: Mapping[str, Callable[[BatchTrial], BatchTrial]] = {
    "bbsched": lambda trial: trial,
    "in order, same window": lambda trial: replace(trial, method="in-order"),
    "bbsched, backfilling looks at 20 jobs": lambda trial: replace(trial, depth=20),
    "bbsched, reservation for the starved": lambda trial: replace(trial, starved=Starved.RESERVE),
    "bbsched, reservations of nodes only": lambda trial: replace(trial, reserve=ReservedKinds.NODES),
}
"""What is varied on the main machine to find where the gain comes from; the baseline backfills in the same way."""
READING_RECIPES = (ORIGINAL, "s2", "s3", "s4")
HARVEST_RECIPES = (ORIGINAL, "s4")
_MAX_HARVEST_SEEDS = 12


@dataclass(frozen=True)
class BatchPlan:
    """The size of an evaluation.

    Attributes:
        seeds: Workloads of each kind.
        jobs: Jobs of each workload.
        log: Jobs in place of generated ones: each workload is a part of it.
    """

    seeds: int
    jobs: int
    log: SiteLog | None = None

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines whose jobs there are."""
        return MACHINES if self.log is None else (YOURS,)

    @property
    def main(self) -> str:
        """The machine on which more is varied than methods and requests."""
        return THETA if self.log is None else YOURS

    @property
    def harvest_seeds(self) -> int:
        """Workloads whose idle nodes are given to trainings: a replay takes as long as a hundred simulations."""
        return min(self.seeds, _MAX_HARVEST_SEEDS)

    def trial(self, machine: str, recipe: str, method: str, seed: int) -> BatchTrial:
        """A trial with the paper's settings."""
        return BatchTrial(machine, recipe, method, seed, self.jobs, log=self.log)

    def harvested(self, recipe: str, method: str, seed: int) -> BatchTrial:
        """The same on the main machine, with trainings on its idle nodes."""
        return replace(self.trial(self.main, recipe, method, seed), harvest=True)

    def windowed(self, machine: str, size: int, seed: int) -> BatchTrial:
        """BBSched on S4 with another window."""
        return replace(self.trial(machine, "s4", "bbsched", seed), window=size)

    def reading(self, name: str, recipe: str, seed: int) -> BatchTrial:
        """One of the readings."""
        return READINGS[name](self.trial(self.main, recipe, "bbsched", seed))

    def reading_baseline(self, name: str, recipe: str, seed: int) -> BatchTrial:
        """What one of the readings is compared with."""
        varied = self.reading(name, recipe, seed)
        return replace(self.trial(self.main, recipe, BASELINE, seed), depth=varied.depth, reserve=varied.reserve)

    def trials(self) -> list[BatchTrial]:
        """All trials, each once, long ones first."""
        found = [self.harvested(recipe, method, seed) for recipe, method, seed in self.harvests()]
        for seed in range(self.seeds):
            found += [self.trial(m, r, name, seed) for m in self.machines for r in RECIPES for name in METHODS]
            found += [self.trial(m, r, name, seed) for m in self.machines for r in SSD_RECIPES for name in SSD_METHODS]
            found += [self.windowed(machine, size, seed) for machine in self.machines for size in WINDOWS]
            for reading in (self.reading, self.reading_baseline):
                found += [reading(name, recipe, seed) for name in READINGS for recipe in READING_RECIPES]
        return list(dict.fromkeys(found))

    def harvests(self) -> list[tuple[str, str, int]]:
        """Recipe, method and seed of the trials with trainings."""
        seeds = range(self.harvest_seeds)
        return [(recipe, method, seed) for seed in seeds for recipe in HARVEST_RECIPES for method in METHODS]


@dataclass(frozen=True)
class BatchResults:
    """The plan and what its trials found."""

    plan: BatchPlan
    found: Mapping[BatchTrial, BatchTrialResult]

    def of(self, trials: Sequence[BatchTrial]) -> list[BatchTrialResult]:
        """The results of trials."""
        return [self.found[trial] for trial in trials]

    def over_seeds(self, machine: str, recipe: str, method: str) -> list[BatchTrialResult]:
        """One result for each workload."""
        return self.of([self.plan.trial(machine, recipe, method, seed) for seed in range(self.plan.seeds)])
