from __future__ import annotations

from malletrain.allocator.machine.stimuli import PlanOutcome
from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem, Assignment
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from tests.support.builders import demand
from tests.support.metrics import read

PREFIX = "malletrain_allocator_"
CURVE = (ScalingPoint(1, 10.0), ScalingPoint(3, 24.0))
PROBLEM = AllocationProblem(
    ("n1", "n2", "n3", "n4"), 120.0, (demand("j1", high=3, curve=CURVE), demand("j2", high=3, curve=CURVE, weight=2.0))
)


def planned(rows: dict[tuple[str, ...], float]) -> dict[str, float]:
    return {key[1]: value for key, value in rows.items() if key[0] == f"{PREFIX}job_planned_samples_per_second"}


async def test_plans_and_solves_count() -> None:
    service, metrics = ServiceMetrics(), AllocatorMetrics()
    metrics.register(service)
    allocation = solve(PROBLEM)
    metrics.note_solution(allocation)
    metrics.note_plan(7, PROBLEM, allocation, PlanOutcome.APPLIED)
    metrics.note_plan(8, PROBLEM, allocation, PlanOutcome.REFUSED)
    found = await read(service)
    assert [found[f"{PREFIX}plans_total", outcome.value] for outcome in PlanOutcome] == [1, 1, 0]
    assert found[f"{PREFIX}plan_generation",] == 8
    assert found[f"{PREFIX}plan_objective",] == allocation.objective
    assert (found[f"{PREFIX}problem_nodes",], found[f"{PREFIX}problem_jobs",]) == (4, 2)
    assert found[f"{PREFIX}solves_total", "dp", "OPTIMAL"] == 1
    assert found[f"{PREFIX}solve_seconds_sum", "dp"] == allocation.solve_seconds


async def test_planned_rates_follow_the_curves_of_the_plan_in_force() -> None:
    service, metrics = ServiceMetrics(), AllocatorMetrics()
    metrics.register(service)
    given = (Assignment("j1", ("n1", "n2")), Assignment("j2", ()))
    metrics.note_plan(1, PROBLEM, Allocation(1.0, "OPTIMAL", "dp", 0.1, given), PlanOutcome.APPLIED)
    assert planned(await read(service)) == {"j1": 17.0}
    metrics.note_plan(2, PROBLEM, Allocation(1.0, "OPTIMAL", "dp", 0.1, ()), PlanOutcome.REFUSED)
    assert planned(await read(service)) == {"j1": 17.0}


async def test_jobs_beyond_the_limit_count_as_one() -> None:
    service, metrics = ServiceMetrics(max_jobs=1), AllocatorMetrics()
    metrics.register(service)
    given = (Assignment("j1", ("n1",)), Assignment("j2", ("n2", "n3", "n4")))
    metrics.note_plan(1, PROBLEM, Allocation(1.0, "OPTIMAL", "dp", 0.1, given), PlanOutcome.APPLIED)
    assert planned(await read(service)) == {"j2": 24.0, "other": 10.0}
