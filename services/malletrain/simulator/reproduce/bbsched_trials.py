"""One trial of BBSched's evaluation: a generated workload, one method, and what its idle nodes are worth to us."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.scavenger.idle_trace import window
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.select import SelectionSettings
from malletrain.simulator.batch.generated import PROFILES, generate
from malletrain.simulator.batch.idle import idle_trace
from malletrain.simulator.batch.policies import policy_named
from malletrain.simulator.batch.recipes import WorkloadRecipe, derive
from malletrain.simulator.batch.running import BASELINE, method_run
from malletrain.simulator.batch.selecting import ReservedKinds, Starved, WindowSettings
from malletrain.simulator.batch.usage import UsageMetrics
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs

ORIGINAL = "original"
LOADS = {"theta": 0.8, "cori": 0.9}
_MOST_PARALLEL = 40


@dataclass(frozen=True)
class BatchTrial:
    """A trial.

    Attributes:
        machine: `theta` or `cori`.
        recipe: `original`, or s1 to s7.
        method: A method, or `baseline`.
        seed: Of the workload.
        jobs: Number of jobs.
        window: Jobs of the window.
        starved: What jobs past the bound get.
        depth: How many jobs backfilling looks at; None: all.
        reserve: What reservations look at.
        harvest: Whether to replay trainings on the idle nodes.
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
    profile = PROFILES[trial.machine]
    workload = generate(profile, trial.jobs, LOADS[trial.machine], trial.seed)
    if trial.recipe != ORIGINAL:
        workload = derive(workload, WorkloadRecipe(trial.recipe), trial.seed)
    selection = None if trial.method == BASELINE else SelectionSettings(SelectionMethod(trial.method))
    settings = WindowSettings(
        selection, trial.window, starved=trial.starved, reserve=trial.reserve, backfill_depth=trial.depth
    )
    done = method_run(workload, policy_named(profile.policy), settings)
    if not trial.harvest:
        return BatchTrialResult(done.metrics, done.counts.genetic_answers)
    trace = idle_trace(done.schedule, min_idle_s=10.0)
    first_s, last_s = workload.measured_s or (0.0, trace.duration_s)
    begin_s = first_s - done.schedule.first_submit_s
    trace = window(trace, begin_s, min(last_s - done.schedule.first_submit_s, trace.duration_s) - begin_s, None)
    scenario = Scenario.of(trace, trace.duration_s)
    jobs = preset_jobs("imagenet")
    options = ReplayOptions(duration_s=trace.duration_s, max_parallel=_MOST_PARALLEL)
    found = evaluate(scenario, jobs, options, bound=False).metrics
    return BatchTrialResult(
        done.metrics, done.counts.genetic_answers, found.equivalent_nodes, found.utilization_efficiency
    )
