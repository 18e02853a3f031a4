"""What a solver's process does about large models, limits that HiGHS keeps itself, and models without a solution."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from malletrain.allocator.solvers.milp import MilpBuilder, MilpModel
from malletrain.allocator.solvers.milp_nodes import node_model
from malletrain.allocator.solvers.solver_process import SolverAnswer, SolverProcess
from tests.allocator.test_solver_process import hard_problem
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def process() -> Iterator[SolverProcess]:
    solver = SolverProcess()
    yield solver
    solver.close()


def picking(count: int) -> MilpModel:
    """Take at most one of `count` things; the last is worth most."""
    builder = MilpBuilder()
    variables = builder.variables(count, [float(index) for index in range(1, count + 1)])
    builder.row([(variable, 1.0) for variable in variables], upper=1.0)
    return builder.build()


def contradiction() -> MilpModel:
    builder = MilpBuilder()
    builder.row([(variable, 1.0) for variable in builder.variables(1)], lower=2.0)
    return builder.build()


def hard_model() -> MilpModel:
    return node_model(hard_problem(30, 300)).model


def test_the_limit_holds_for_a_model_that_a_stopped_child_does_not_take_in(process: SolverProcess) -> None:
    process.solve(picking(2), 30)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    large = picking(50_000)
    assert large.value.nbytes > 1 << 16, "more than a pipe holds"
    answer = process.solve(large, 0.5)
    assert answer == SolverAnswer(None, False, "the time limit passed")
    assert not psutil.pid_exists(first)
    again = process.solve(large, 60)
    assert again.proven
    assert again.solution is not None
    assert int(np.argmax(again.solution)) == 49_999


def test_the_best_solution_so_far_outlives_the_child(process: SolverProcess) -> None:
    process.solve(picking(2), 30)
    child = psutil.Process(process.pid)
    answers: list[SolverAnswer] = []
    solving = threading.Thread(target=lambda: answers.append(process.solve(hard_model(), 100.0)))
    before = child.cpu_times().user
    solving.start()
    wait_until(lambda: child.cpu_times().user - before > 2.5, 90.0, "the solver's work")
    child.kill()
    solving.join()
    assert answers[0].solution is not None
    assert (answers[0].proven, answers[0].problem) == (False, "the solver's process died")


def test_close_ends_a_solve_of_another_thread(process: SolverProcess) -> None:
    process.solve(picking(2), 30)
    child = psutil.Process(process.pid)
    answers: list[SolverAnswer] = []
    solving = threading.Thread(target=lambda: answers.append(process.solve(hard_model(), 100.0)))
    before = child.cpu_times().user
    solving.start()
    wait_until(lambda: child.cpu_times().user - before > 0.2, 90.0, "the solver's work")
    process.close()
    solving.join()
    assert answers[0].problem == "the solver's process died"
    assert not child.is_running()
    assert process.pid is None


def test_a_model_without_a_solution_is_an_answer(process: SolverProcess) -> None:
    answer = process.solve(contradiction(), 30)
    assert answer.solution is None
    assert "Infeasible" in answer.problem
    assert process.solve(picking(2), 30).proven


def test_close_ends_the_child(process: SolverProcess) -> None:
    process.solve(picking(2), 30)
    child = psutil.Process(process.pid)
    process.close()
    assert not child.is_running()
    assert process.pid is None
    process.close()
