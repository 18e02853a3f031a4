"""Metrics of the Allocator: its plans, and what it takes to make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import nan

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from malletrain.allocator.auto_tuning.machine import TuningEvent
from malletrain.allocator.machine.stimuli import PlanOutcome
from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.objective import rates
from malletrain.allocator.utilization.definition import Utilization
from malletrain.runtime.metrics.rows import JobRow, limit_rows
from malletrain.runtime.metrics.service_metrics import ServiceMetrics

_SOLVE_BUCKETS_S = (0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


_Applied = tuple[AllocationProblem, Allocation]
"""A problem and its solution, as JobManager has applied it."""


def planned_rates(applied: _Applied | None) -> list[JobRow]:
    """What an applied plan expects of the jobs that got nodes: throughput at the planned scale, by the job's curve."""
    if applied is None:
        return []
    problem, allocation = applied
    jobs = {job.id: job for job in problem.jobs}
    scales = [(jobs[entry.job_id], len(entry.nodes)) for entry in allocation.assignments if entry.nodes]
    return [JobRow(job.id, (float(rates(job, [count])[0]),)) for job, count in scales]


class AllocatorMetrics:
    """The metrics of one Allocator."""

    def __init__(self, last_hour: Callable[[], Utilization | None] = lambda: None) -> None:
        """
        Args:
            last_hour: U of the last hour; None: not known.
        """
        self._last_hour = last_hour
        self._plans = Counter(
            "malletrain_allocator_plans",
            "Plans by what JobManager did with them: applied, refused, or unreachable if it could not be asked.",
            ["outcome"],
            registry=None,
        )
        for outcome in PlanOutcome:
            self._plans.labels(outcome.value)
        self._solves = Counter(
            "malletrain_allocator_solves",
            "Problems solved, by the status of the solution: OPTIMAL, FEASIBLE or UNCHANGED.",
            ["solver", "status"],
            registry=None,
        )
        self._solve_seconds = Histogram(
            "malletrain_allocator_solve_seconds",
            "How long solving a problem took.",
            ["solver"],
            buckets=_SOLVE_BUCKETS_S,
            registry=None,
        )
        self._generation = Gauge(
            "malletrain_allocator_plan_generation", "Generation of the newest plan.", registry=None
        )
        self._objective = Gauge(
            "malletrain_allocator_plan_objective",
            "Objective of the newest plan: weighted samples (or scaling efficiency x seconds) within its horizon.",
            registry=None,
        )
        self._nodes = Gauge("malletrain_allocator_problem_nodes", "Nodes of the newest problem.", registry=None)
        self._jobs = Gauge("malletrain_allocator_problem_jobs", "Jobs of the newest problem.", registry=None)
        self._tuning_runs = Counter(
            "malletrain_allocator_tuning_runs",
            "Runs of auto-tuning by what they led to; none where allocator.auto_tune is off.",
            ["event"],
            registry=None,
        )
        for event in TuningEvent:
            self._tuning_runs.labels(event.value)
        self._forward = Gauge(
            "malletrain_allocator_forward_seconds",
            "forward_seconds in force, by the policy in force; auto-tuning may have changed both.",
            ["policy"],
            registry=None,
        )
        # Rates are computed when they are scraped: of a thousand jobs they take as long as half a plan.
        self._applied: _Applied | None = None

    def register(self, metrics: ServiceMetrics) -> None:
        """Add them to those of the service.

        Raises:
            RuntimeError: no event loop is running.
        """
        metrics.add(
            self._plans,
            self._solves,
            self._solve_seconds,
            self._generation,
            self._objective,
            self._nodes,
            self._jobs,
            self._tuning_runs,
            self._forward,
        )

        def rendered(applied: _Applied | None) -> Iterator[Metric]:
            yield _planned_metric(applied, metrics.max_jobs)

        metrics.watch(lambda: self._applied, rendered, None)
        metrics.watch(self._last_hour, _utilization_metrics, None)

    def note_solution(self, allocation: Allocation) -> None:
        """A problem was solved, for a plan or for a caller."""
        self._solves.labels(allocation.solver, allocation.status).inc()
        self._solve_seconds.labels(allocation.solver).observe(allocation.solve_seconds)

    def note_tuning(self, event: TuningEvent) -> None:
        """A run of auto-tuning has ended."""
        self._tuning_runs.labels(event.value).inc()

    def forward(self, forward: ForwardTime) -> None:
        """T_fwd comes from this now."""
        self._forward.clear()
        self._forward.labels(forward.policy.value).set(forward.seconds)

    def note_plan(
        self, generation: int, problem: AllocationProblem, allocation: Allocation, outcome: PlanOutcome
    ) -> None:
        """A plan was made and offered to JobManager.

        Args:
            generation: Of the plan.
            problem: The whole problem.
            allocation: Its solution.
            outcome: JobManager's answer to it.
        """
        self._plans.labels(outcome.value).inc()
        self._generation.set(generation)
        self._objective.set(allocation.objective)
        self._nodes.set(len(problem.nodes))
        self._jobs.set(len(problem.jobs))
        if outcome is PlanOutcome.APPLIED:
            self._applied = problem, allocation


def _utilization_metrics(utilization: Utilization | None) -> Iterator[Metric]:
    """U and its bound are NaN where nothing could have been trained."""
    known = utilization if utilization is not None else Utilization(0.0, 0.0, None, None)
    values = {
        "utilization_efficiency": (
            "U of the last hour: samples that jobs trained on idle nodes, over those that they could have trained on "
            "as many nodes that are always there, by their curves; minute by minute. NaN: nothing to train.",
            nan if known.efficiency is None else known.efficiency,
        ),
        "utilization_efficiency_bound": (
            "The same if rescaling were free: the zero-cost bound, which U never exceeds.",
            nan if known.bound is None else known.bound,
        ),
        "utilization_seconds": ("How much of the last hour the two figures are of.", known.seconds),
    }
    for name, (meaning, value) in values.items():
        yield GaugeMetricFamily(f"malletrain_allocator_{name}", meaning, value)


def _planned_metric(applied: _Applied | None, max_rows: int) -> Metric:
    family = GaugeMetricFamily(
        "malletrain_allocator_job_planned_samples_per_second",
        "What a job would process at its planned scale by its curve, if rescales cost nothing.",
        labels=["job_id"],
    )
    ordered = sorted(planned_rates(applied), key=lambda row: row.values, reverse=True)
    for row in limit_rows(ordered, max_rows):
        family.add_metric([row.job_id], row.values[0])
    return family
