"""Mixed-integer linear programs (MILP) as plain arrays, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np
from numpy.typing import NDArray

_GAP = 1e-9
_THREADS = 1

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MilpModel:
    """Maximise cost·x subject to lower <= x <= upper and row_lower <= A x <= row_upper.

    Attributes:
        cost: Objective, shape (variables,).
        lower: Lower bounds, shape (variables,).
        upper: Upper bounds, shape (variables,).
        integer: Which variables are integer, shape (variables,).
        row_lower: Lower bounds of the rows, shape (rows,).
        row_upper: Upper bounds of the rows, shape (rows,).
        start: A in compressed row form: index of each row's first entry, shape (rows + 1,).
        index: Variable of each entry.
        value: Coefficient of each entry.
        incumbent: A feasible solution to start from, shape (variables,): HiGHS looks for better ones only. None: it has
            to find the first one itself.
    """

    cost: Floats
    lower: Floats
    upper: Floats
    integer: NDArray[np.bool_]
    row_lower: Floats
    row_upper: Floats
    start: NDArray[np.int32]
    index: NDArray[np.int32]
    value: Floats
    incumbent: Floats | None = None


@dataclass
class MilpBuilder:
    """Collects the variables and rows of a `MilpModel`."""

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def variables(
        self, count: int, cost: Sequence[float] | float = 0.0, upper: float = 1.0, integer: bool = True
    ) -> list[int]:
        """Add variables from 0 to `upper`; returns their indices."""
        first = len(self.cost)
        self.cost += [cost] * count if isinstance(cost, (int, float)) else list(cost)
        self.lower += [0.0] * count
        self.upper += [upper] * count
        self.integer += [integer] * count
        return list(range(first, first + count))

    def row(self, terms: Sequence[tuple[int, float]], lower: float = -np.inf, upper: float = np.inf) -> None:
        """Add lower <= sum of terms <= upper."""
        for variable, coefficient in terms:
            self.index.append(variable)
            self.value.append(coefficient)
        self.start.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def build(self) -> MilpModel:
        """The model as arrays."""
        return MilpModel(
            np.asarray(self.cost, dtype=np.float64),
            np.asarray(self.lower, dtype=np.float64),
            np.asarray(self.upper, dtype=np.float64),
            np.asarray(self.integer, dtype=np.bool_),
            np.asarray(self.row_lower, dtype=np.float64),
            np.asarray(self.row_upper, dtype=np.float64),
            np.asarray(self.start, dtype=np.int32),
            np.asarray(self.index, dtype=np.int32),
            np.asarray(self.value, dtype=np.float64),
        )


class SolverError(Exception):
    """HiGHS refused a model, or ended without a solution."""


def maximise(model: MilpModel, seconds: float, on_incumbent: Callable[[Floats], None]) -> tuple[bool, Floats]:
    """Solve a model.

    Args:
        model: The model; x = 0 need not be feasible.
        seconds: HiGHS's own time limit. HiGHS may overrun it, so callers enforce theirs from outside.
        on_incumbent: Called with every better solution that is found on the way.

    Returns:
        Whether optimality is proven, and the best solution of shape (variables,).

    Raises:
        SolverError: HiGHS refused the model or found no solution.
    """
    if not len(model.cost):
        return True, np.zeros(0)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", seconds)
    solver.setOptionValue("mip_rel_gap", _GAP)
    solver.setOptionValue("mip_abs_gap", _GAP)
    solver.setOptionValue("threads", _THREADS)
    if solver.passModel(_linear_program(model)) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refused the model")
    if model.incumbent is not None:
        # One that is not feasible is ignored.
        start = highspy.HighsSolution()
        start.col_value = model.incumbent
        start.value_valid = True
        solver.setSolution(start)
    solver.cbMipImprovingSolution.subscribe(lambda event: on_incumbent(np.array(event.data_out.mip_solution)))
    solver.solve()
    status = solver.getModelStatus()
    solution = np.asarray(solver.getSolution().col_value)
    if status == highspy.HighsModelStatus.kOptimal:
        return True, solution
    if status == highspy.HighsModelStatus.kTimeLimit and solver.getInfo().primal_solution_status == 2:
        return False, solution
    raise SolverError(f"HiGHS ended with {solver.modelStatusToString(status)}")


def _linear_program(model: MilpModel) -> highspy.HighsLp:
    program = highspy.HighsLp()
    program.num_col_ = len(model.cost)
    program.num_row_ = len(model.row_lower)
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = model.cost
    program.col_lower_ = model.lower
    program.col_upper_ = model.upper
    program.row_lower_ = model.row_lower
    program.row_upper_ = model.row_upper
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = model.start
    program.a_matrix_.index_ = model.index
    program.a_matrix_.value_ = model.value
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    program.integrality_ = [kinds[int(flag)] for flag in model.integer]
    return program
