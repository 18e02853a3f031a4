"""What tests of plans share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from malletrain.allocator.solvers.solver_process import SolverProcess


@pytest.fixture(scope="module")
def process() -> Iterator[SolverProcess]:
    """Where HiGHS runs."""
    solver = SolverProcess()
    yield solver
    solver.close()
