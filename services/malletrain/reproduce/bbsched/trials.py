"""One trial of BBSched's evaluation: a generated workload, one method, and what its idle nodes are worth to us."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import window
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.select import SelectionSettings
from malletrain.simulator.batch.generated import MEASURED, PROFILES, generate, original_requests
from malletrain.simulator.batch.idle import idle_trace
from malletrain.simulator.batch.machine import MachineSpec
from malletrain.simulator.batch.policies import PolicyName, policy_named
from malletrain.simulator.batch.recipes import WorkloadRecipe, derive
from malletrain.simulator.batch.running import BASELINE, method_run
from malletrain.simulator.batch.selecting import ReservedKinds, Starved, WindowSettings
from malletrain.simulator.batch.usage import UsageMetrics
from malletrain.simulator.batch.workload import BatchWorkload
from malletrain.simulator.batch.workload_files import read_any_workload
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs

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
    found = evaluate(scenario, jobs, options, bound=False).metrics
    return BatchTrialResult(
        done.metrics, done.counts.genetic_answers, found.equivalent_nodes, found.utilization_efficiency
    )
