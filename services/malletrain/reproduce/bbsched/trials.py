"""BBSched's evaluation: what the paper reports as numbers, one trial, and which trials the exhibits need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import window
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.select import SelectionSettings
from malletrain.simulator.batch.generated import MEASURED, PROFILES, WorkloadRecipe, derive, generate, original_requests
from malletrain.simulator.batch.idle import idle_trace
from malletrain.simulator.batch.machine import MachineSpec
from malletrain.simulator.batch.policies import PolicyName, ReservedKinds, Starved, WindowSettings, policy_named
from malletrain.simulator.batch.running import BASELINE, method_run
from malletrain.simulator.batch.usage import UsageMetrics
from malletrain.simulator.batch.workload import BatchWorkload
from malletrain.simulator.batch.workload_files import read_any_workload
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs

TABLE_1: Mapping[str, str] = {
    "baseline": "J1, J4: 90 % of nodes, 20 % of burst buffer",
    "weighted-cpu": "J1, J5: 100 %, 20 %",
    "constrained-cpu": "J1, J5: 100 %, 20 %",
    "bin-packing": "J1, J5: 100 %, 20 %",
    "bbsched": "J2 to J5: 80 %, 90 %",
}
TABLE_3: Mapping[tuple[str, int], tuple[float, float, float, float]] = {
    ("cori", 10): (60.18, 92.53, 55_732, 162.4),
    ("cori", 20): (64.90, 94.74, 51_028, 154.4),
    ("cori", 50): (65.06, 94.65, 50_871, 153.2),
    ("theta", 10): (67.12, 84.23, 10_402, 8.93),
    ("theta", 20): (73.29, 89.54, 8_847, 8.16),
    ("theta", 50): (74.34, 89.63, 8_792, 8.08),
}
"""Node usage and burst buffer usage in %, wait in seconds, slowdown, by machine and window."""
NODE_USAGE = (
    "Published: BBSched best in 7 of 10 workloads; against the baseline +12.69 % on Theta-S3, +20.03 % on Theta-S4, "
    "+16.28 % on Cori-S4 (relative or points is not said)."
)
BURST_BUFFER_USAGE = "Published: BBSched best in all ten, up to +15.46 %; all methods but Constrained_CPU improve it."
WAIT = (
    "Published: with BBSched jobs wait up to 33.44 % less than with the baseline on Cori, 41 % on Theta-S4, 21.30 % on "
    "Theta-Original; the second is Weighted_BB with less than 26 %."
)
WAIT_CHANGES: Mapping[str, float] = {"theta-original": -21.30, "theta-s4": -41.0}
"""Wait with BBSched against the baseline by workload, in %, where the text says which."""
BREAKDOWN = {
    "nodes": "Published: 1-8 nodes −48.29 %, 1024-4392 nodes −31.59 % with BBSched.",
    "burst buffer": "Published: baseline 10.25 h above 200 TB and 2.5 h without request; Constrained_CPU −32.43 % "
    "without request, +17.21 % for 100-200 TB.",
    "run time": "Published: with all optimising methods long jobs wait less, and short ones more.",
}
TIMES = (
    "Published: below 0.2 s with P = 20, G = 500; below 2 s with G = 2000 and w = 50; exhaustive search exponential."
)


ORIGINAL = "original"
LOADS = {"theta": 0.8, "cori": 0.9}
_MAX_PARALLEL = 40


@dataclass(frozen=True)
class SiteLog:
    """A centre's own jobs in place of generated ones.

    Attributes:
        path: The workload, as `malletrain batch --workload` takes it.
        nodes: Nodes of the machine; None: as the file says.
        burst_buffer_gb: Burst buffer of the machine in GB; None: as the file says.
    """

    path: Path
    nodes: int | None = None
    burst_buffer_gb: int | None = None

    def parts(self, jobs: int) -> int:
        """How many parts of so many jobs it has."""
        return len(_jobs_of(self).jobs) // jobs

    def part(self, number: int, jobs: int) -> BatchWorkload:
        """Consecutive jobs, from second 0 on.

        Raises:
            InvalidInputError: the log has no such part.
        """
        whole = _jobs_of(self)
        chosen = whole.jobs[number * jobs : (number + 1) * jobs]
        if len(chosen) < jobs:
            raise InvalidInputError(str(self.path), f"at least {(number + 1) * jobs} jobs", len(whole.jobs))
        moved = tuple(replace(job, submit_s=job.submit_s - chosen[0].submit_s) for job in chosen)
        span_s = moved[-1].submit_s
        measured = (MEASURED[0] * span_s, MEASURED[1] * span_s) if span_s > 0 else None
        return replace(whole, jobs=moved, measured_s=measured)


@lru_cache(maxsize=1)
def _jobs_of(log: SiteLog) -> BatchWorkload:
    """Read once in each process: a trial takes less time than reading a large log."""
    return read_any_workload(log.path, spec=MachineSpec(log.nodes, log.burst_buffer_gb), skip_too_large=True)


@dataclass(frozen=True)
class BatchTrial:
    """A trial.

    Attributes:
        machine: `theta`, `cori`, or `yours` with a log.
        recipe: `original`, or s1 to s7.
        method: A method, or `baseline`.
        seed: Of the workload.
        jobs: Number of jobs.
        window: Jobs of the window.
        starved: What jobs past the bound get.
        depth: How many jobs backfilling looks at; None: all.
        reserve: What reservations look at.
        harvest: Whether to replay trainings on the idle nodes.
        log: Jobs in place of generated ones: the part whose number is the seed.
    """

    machine: str
    recipe: str
    method: str
    seed: int
    jobs: int
    window: int = 20
    starved: Starved = Starved.FORCE
    depth: int | None = None
    reserve: ReservedKinds = ReservedKinds.ALL
    harvest: bool = False
    log: SiteLog | None = None


@dataclass(frozen=True)
class BatchTrialResult:
    """What a trial finds.

    Attributes:
        metrics: Of the main queue.
        genetic_answers: Selections that the genetic algorithm answered, as an exact search was too long.
        equivalent_nodes: N_eq of the idle nodes; None if they were not replayed.
        efficiency: U of our jobs on them; None likewise.
    """

    metrics: UsageMetrics
    genetic_answers: int = 0
    equivalent_nodes: float | None = None
    efficiency: float | None = None


def run_trial(trial: BatchTrial) -> BatchTrialResult:
    """Run a trial."""
    originals: tuple[int, ...] = ()
    if trial.log is not None:
        workload, policy = trial.log.part(trial.seed, trial.jobs), PolicyName.WFP
    else:
        profile = PROFILES[trial.machine]
        workload, policy = generate(profile, trial.jobs, LOADS[trial.machine], trial.seed), profile.policy
        originals = original_requests(profile, trial.seed)
    if trial.recipe != ORIGINAL:
        workload = derive(workload, WorkloadRecipe(trial.recipe), trial.seed, originals)
    selection = None if trial.method == BASELINE else SelectionSettings(SelectionMethod(trial.method))
    settings = WindowSettings(
        selection, trial.window, starved=trial.starved, reserve=trial.reserve, backfill_depth=trial.depth
    )
    done = method_run(workload, policy_named(policy), settings)
    if not trial.harvest:
        return BatchTrialResult(done.metrics, done.counts.genetic_answers)
    trace = idle_trace(done.schedule, min_idle_s=10.0)
    first_s, last_s = workload.measured_s or (0.0, trace.duration_s)
    begin_s = first_s - done.schedule.first_submit_s
    trace = window(trace, begin_s, min(last_s - done.schedule.first_submit_s, trace.duration_s) - begin_s, None)
    scenario = Scenario.of(trace, trace.duration_s)
    jobs = preset_jobs("imagenet")
    options = ReplayOptions(duration_s=trace.duration_s, max_parallel=_MAX_PARALLEL, repeat_jobs=True)
    metrics = evaluate(scenario, jobs, options, bound=False).metrics
    return BatchTrialResult(
        done.metrics, done.counts.genetic_answers, metrics.equivalent_nodes, metrics.utilization_efficiency
    )


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
        """The trial on the main machine, with trainings on its idle nodes."""
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
        trials = [self.harvested(recipe, method, seed) for recipe, method, seed in self.harvests()]
        for seed in range(self.seeds):
            trials += [self.trial(m, r, name, seed) for m in self.machines for r in RECIPES for name in METHODS]
            trials += [self.trial(m, r, name, seed) for m in self.machines for r in SSD_RECIPES for name in SSD_METHODS]
            trials += [self.windowed(machine, size, seed) for machine in self.machines for size in WINDOWS]
            for reading in (self.reading, self.reading_baseline):
                trials += [reading(name, recipe, seed) for name in READINGS for recipe in READING_RECIPES]
        return list(dict.fromkeys(trials))

    def harvests(self) -> list[tuple[str, str, int]]:
        """Recipe, method and seed of the trials with trainings."""
        seeds = range(self.harvest_seeds)
        return [(recipe, method, seed) for seed in seeds for recipe in HARVEST_RECIPES for method in METHODS]


@dataclass(frozen=True)
class BatchResults:
    """The plan and what its trials found."""

    plan: BatchPlan
    by_trial: Mapping[BatchTrial, BatchTrialResult]

    def of(self, trials: Sequence[BatchTrial]) -> list[BatchTrialResult]:
        """The results of trials."""
        return [self.by_trial[trial] for trial in trials]

    def over_seeds(self, machine: str, recipe: str, method: str) -> list[BatchTrialResult]:
        """One result for each workload."""
        return self.of([self.plan.trial(machine, recipe, method, seed) for seed in range(self.plan.seeds)])
