"""Formulation `milp`: HiGHS from the present nodes on, and never the dynamic program."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from malletrain.allocator.problem.allocation_problem import AllocationProblem, Formulation, JobDemand
from malletrain.allocator.solvers.milp import Floats, MilpBuilder, MilpModel, maximise
from malletrain.allocator.solvers.solver_process import SolverAnswer, SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.scavenger.idle_trace import window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs
from malletrain.simulator.services import driven_allocator
from malletrain.simulator.services.engine import run_services_replay
from tests.support.builders import demand
from tests.support.shared import shared_path

NODES = tuple(f"n{index}" for index in range(8))
LIMIT = 60.0
LATE = "the time limit passed"


@dataclass
class LateSolver(SolverProcess):
    """Has proven nothing when its time has passed: it knows what it was given to start from, or nothing.

    Attributes:
        finds: Whether it says what it was given.
        given: The models that it was to solve.
    """

    finds: bool
    given: list[MilpModel] = field(default_factory=list)

    def solve(self, model: MilpModel, seconds: float) -> SolverAnswer:
        self.given.append(model)
        return SolverAnswer(model.incumbent if self.finds else None, False, LATE)


def job(name: str, *held: str, rate: float = 10.0) -> JobDemand:
    return demand(name, *held, rate=rate, power=0.9, scale_up_seconds=18.0, scale_down_seconds=12.0)


def counts(problem: AllocationProblem, process: SolverProcess, formulation: Formulation) -> tuple[str, str, list[int]]:
    answer = solve(problem, formulation, LIMIT, process)
    return answer.status, answer.solver, [len(entry.nodes) for entry in answer.assignments]


def test_it_starts_from_the_present_nodes() -> None:
    solver = LateSolver(finds=True)
    problem = AllocationProblem(NODES, 120.0, (job("a", "n0", "n1"), job("b", "n2", rate=11.0)), owner_limits={})
    found = counts(problem, solver, Formulation.MILP)
    (model,) = solver.given
    assert model.incumbent is not None
    assert model.incumbent.sum() == len(problem.jobs), "one scale of each job"
    rows = np.add.reduceat(model.value * model.incumbent[model.index], model.start[:-1])
    assert (rows <= model.row_upper + 1e-9).all(), "feasible"
    assert (rows >= model.row_lower - 1e-9).all(), "feasible"
    assert found[1] in ("highs-milp", "present")


def test_without_a_proof_in_time_the_present_nodes_stay() -> None:
    problem = AllocationProblem(NODES, 120.0, (job("a", "n0", "n1"), job("b", "n2")))
    assert counts(problem, LateSolver(finds=False), Formulation.MILP) == ("UNCHANGED", "present", [2, 1])
    assert counts(problem, LateSolver(finds=False), Formulation.COUNTS)[:2] == ("OPTIMAL", "dp")
    reason = solve(problem, Formulation.MILP, LIMIT, LateSolver(finds=False)).fallback_reason
    assert reason == f"highs-milp: {LATE}"


def knapsack(incumbent: Floats | None = None) -> MilpModel:
    builder = MilpBuilder()
    variables = builder.variables(300, [float(index * 37 % 101 + 1) for index in range(300)])
    builder.row([(variable, float(variable * 53 % 97 + 3)) for variable in variables], upper=900.5)
    return replace(builder.build(), incumbent=incumbent)


def test_highs_keeps_what_it_was_given_where_it_has_no_time() -> None:
    given = np.zeros(300)
    given[5] = 1.0
    proven, found = maximise(knapsack(given), 0.0, lambda _: None)
    assert not proven
    assert knapsack().cost @ found >= knapsack().cost @ given > 0


def test_a_start_that_is_not_feasible_does_no_harm() -> None:
    proven, found = maximise(knapsack(np.ones(300)), 30.0, lambda _: None)
    assert proven
    assert knapsack().cost @ found == pytest.approx(knapsack().cost @ maximise(knapsack(), 30.0, lambda _: None)[1])


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("preset", ["hpo", "imagenet"])
def test_every_plan_of_a_replayed_day_is_worth_the_same_with_both(
    process: SolverProcess, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_s = 24 * 3600.0
    trace = read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))
    scenario = Scenario.of(window(trace, 0.0, day_s, 256), day_s)
    asked: list[AllocationProblem] = []
    answer = driven_allocator.solve_problem
    monkeypatch.setattr(driven_allocator, "solve_problem", lambda problem: (asked.append(problem), answer(problem))[1])
    run_services_replay(scenario.events, scenario.nodes, preset_jobs(preset), ReplayOptions(duration_s=day_s))
    assert len(asked) > 200
    for problem in asked:
        exact, milp = solve(problem), solve(problem, Formulation.MILP, LIMIT, process)
        assert (exact.solver, milp.solver) == ("dp", "highs-milp"), milp.fallback_reason
        assert milp.objective == pytest.approx(exact.objective, rel=1e-6, abs=1e-6)
