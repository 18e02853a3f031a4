"""A solver that hangs or dies: the limit holds, and the answer says what happened."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from malletrain.allocator.problem.allocation_problem import AllocationProblem, Formulation, JobDemand
from malletrain.allocator.problem.objective import objective_of, scale_values
from malletrain.allocator.solvers import solving
from malletrain.allocator.solvers.solver_process import SolverAnswer, SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def process() -> Iterator[SolverProcess]:
    solver = SolverProcess()
    yield solver
    solver.close()


def hard_problem(jobs: int = 12, nodes: int = 60) -> AllocationProblem:
    rng = random.Random(5)
    demands = []
    for index in range(jobs):
        rates = sorted(rng.uniform(10, 1000) for _ in range(12))
        points = tuple(ScalingPoint(5 * (k + 1), rate) for k, rate in enumerate(rates))
        demands.append(JobDemand(f"j{index}", 1, 60, points, scale_up_seconds=3.0))
    return AllocationProblem(tuple(f"n{k}" for k in range(nodes)), 120.0, tuple(demands))


SMALL = hard_problem(2, 4)


def test_a_hung_solver_is_killed_at_the_limit_and_the_next_solve_has_a_new_one(process: SolverProcess) -> None:
    solve(SMALL, Formulation.COUNTS, 30, process)
    assert process.pid is not None
    first = process.pid
    os.kill(first, signal.SIGSTOP)
    started = time.monotonic()
    answer = solve(SMALL, Formulation.COUNTS, 1.0, process)
    assert time.monotonic() - started < 10
    assert (answer.solver, answer.status) == ("dp", "OPTIMAL")
    assert "time limit" in answer.fallback_reason
    assert not psutil.pid_exists(first)
    assert solve(SMALL, Formulation.COUNTS, 30, process).solver == "highs-counts"
    assert process.pid != first


def test_a_solver_killed_in_mid_solve_is_a_fallback_not_an_error(process: SolverProcess) -> None:
    solve(SMALL, Formulation.COUNTS, 30, process)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    answer = solve(SMALL, Formulation.NODES, 30, process)
    assert answer.solver == "dp"
    assert "died" in answer.fallback_reason


def test_where_the_dynamic_programme_is_too_large_the_incumbent_or_the_present_map_serves(
    process: SolverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "MAX_DP", 0)
    problem = hard_problem()
    held = JobDemand(**{**problem.jobs[0].__dict__, "current_nodes": ("n7", "n9")})
    problem = AllocationProblem(problem.nodes, 120.0, (held, *problem.jobs[1:]))
    solve(SMALL, Formulation.COUNTS, 30, process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    nothing = solve(problem, Formulation.NODES, 0.5, process)
    assert (nothing.status, nothing.solver) == ("UNCHANGED", "present")
    assert nothing.assignments[0].nodes == ("n7", "n9")
    assert all(not entry.nodes for entry in nothing.assignments[1:])
    some = solve(problem, Formulation.NODES, 2.5, process)
    assert some.status in ("FEASIBLE", "OPTIMAL", "UNCHANGED")
    assert some.objective <= solve(problem).objective * (1 + 1e-9)


@pytest.mark.parametrize(("held", "status"), [(("n1", "n2", "n3", "n4"), "UNCHANGED"), ((), "FEASIBLE")])
def test_at_a_time_out_the_better_of_the_present_map_and_the_incumbent_is_chosen(
    monkeypatch: pytest.MonkeyPatch, held: tuple[str, ...], status: str
) -> None:
    """Such an incumbent was worth 10,200 where the present map was worth 45,600 (BFTrainer, section 3.6)."""
    monkeypatch.setattr(solving, "MAX_DP", 0)
    curve = (ScalingPoint(1, 100.0), ScalingPoint(4, 380.0))
    demand = JobDemand("a", 1, 4, curve, scale_down_seconds=18.0, current_nodes=held)
    problem = AllocationProblem(("n1", "n2", "n3", "n4"), 120.0, (demand,))
    late = SolverAnswer(None, False, "the time limit passed")
    per_job = [scale_values(demand, problem)]
    counts, outcome = solving.judge_answer(problem, per_job, Formulation.COUNTS, late, [1])
    assert (outcome.status, counts) == (status, [4 if held else 1])
    assert objective_of(per_job, counts) == pytest.approx(45_600.0 if held else 12_000.0)


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "import time; from malletrain.allocator.solvers.solver_process import SolverProcess as S;"
        "from tests.allocator.test_solver_process import SMALL; from malletrain.allocator.solvers.solving import *;"
        "p = S(); solve(SMALL, Formulation.COUNTS, 30, p); print(p.pid, flush=True); time.sleep(60)"
    )
    import subprocess
    import sys

    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", 10, "its end")
