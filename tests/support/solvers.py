"""Solvers in place of the services' own."""

from __future__ import annotations

from malletrain.allocator.solvers.milp import MilpModel
from malletrain.allocator.solvers.solver_process import SolverAnswer, SolverProcess


class Silent(SolverProcess):
    """HiGHS does not answer in time."""

    def solve(self, model: MilpModel, seconds: float) -> SolverAnswer:
        del model, seconds
        return SolverAnswer(None, proven=False, problem="no answer in time")
