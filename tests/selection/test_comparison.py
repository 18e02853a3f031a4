from __future__ import annotations

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.problem import FreeResources, MachineResources, ResourceRequest, SelectionProblem
from malletrain.selection.select import FIRST_MISFIT, SelectionSettings, compare_starts

MACHINE = MachineResources(100, 100)
FREE = FreeResources(100, burst_buffer_gb=100)
# Fan et al. (HPDC 2019), Table 1.
TABLE_1 = tuple(ResourceRequest(*job) for job in ((80, 20), (10, 85), (40, 5), (10, 0), (20, 0)))


def test_table_1() -> None:
    until, ordered, method = compare_starts(SelectionProblem(MACHINE, FREE, TABLE_1), SelectionSettings())
    assert (until.name, until.chosen) == (FIRST_MISFIT, (0,))
    assert (ordered.name, ordered.chosen) == ("in-order", (0, 3))
    assert (method.name, method.chosen) == ("bbsched", (1, 2, 3, 4))
    assert (method.uses.nodes, method.uses.burst_buffer_gb) == (80, 90)


def test_a_first_job_that_does_not_fit() -> None:
    problem = SelectionProblem(MACHINE, FreeResources(50, burst_buffer_gb=100), TABLE_1)
    assert compare_starts(problem, SelectionSettings())[0].chosen == ()


def test_in_order_is_not_told_twice() -> None:
    ways = compare_starts(SelectionProblem(MACHINE, FREE, TABLE_1), SelectionSettings(SelectionMethod.IN_ORDER))
    assert [way.name for way in ways] == [FIRST_MISFIT, "in-order"]


def test_without_jobs_nothing_starts() -> None:
    assert [way.chosen for way in compare_starts(SelectionProblem(MACHINE, FREE, ()), SelectionSettings())] == [()] * 3


def test_a_method_that_needs_ssds() -> None:
    with pytest.raises(InvalidInputError, match="constrained-ssd"):
        compare_starts(SelectionProblem(MACHINE, FREE, ()), SelectionSettings(SelectionMethod.CONSTRAINED_SSD))
