"""The methods by name, and what those with a single objective maximise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.arrays import Ints, ProblemArrays, share_units
from malletrain.selection.problem import MachineResources, SelectionProblem


class SelectionMethod(StrEnum):
    """How jobs are chosen from the window (Fan et al., HPDC 2019, §4.3). IN_ORDER: each that still fits, in order."""

    WEIGHTED = "weighted"
    WEIGHTED_CPU = "weighted-cpu"
    WEIGHTED_BB = "weighted-bb"
    CONSTRAINED_CPU = "constrained-cpu"
    CONSTRAINED_BB = "constrained-bb"
    CONSTRAINED_SSD = "constrained-ssd"
    BIN_PACKING = "bin-packing"
    BBSCHED = "bbsched"
    IN_ORDER = "in-order"


_TENTHS_OF_NODES = {SelectionMethod.WEIGHTED: 5, SelectionMethod.WEIGHTED_CPU: 8, SelectionMethod.WEIGHTED_BB: 2}
_ALONE = {
    SelectionMethod.CONSTRAINED_CPU: (1, 0, 0, 0),
    SelectionMethod.CONSTRAINED_BB: (0, 1, 0, 0),
    SelectionMethod.CONSTRAINED_SSD: (0, 0, 1, 0),
}


@dataclass(frozen=True, slots=True)
class ObjectiveWeights:
    """A single objective: the sum of weight · objective over f1 … f4, in whole numbers."""

    weights: tuple[int, int, int, int]

    def of_jobs(self, arrays: ProblemArrays) -> Ints:
        """What each job adds."""
        return self.of_points(arrays.objectives.T)

    def of_points(self, points: Ints) -> Ints:
        """The value of each point; shape (points, 4)."""
        total: Ints = points @ np.array(self.weights, dtype=np.int64)
        return total

    def spill_cost(self, arrays: ProblemArrays) -> int:
        """What a node that spills costs."""
        return self.weights[3] * arrays.spill_gb


def methods_for(machine: MachineResources) -> tuple[SelectionMethod, ...]:
    """The methods that the paper compares on such a machine."""
    with_ssd = {SelectionMethod.CONSTRAINED_SSD}
    without = {SelectionMethod.WEIGHTED_CPU, SelectionMethod.WEIGHTED_BB}
    left_out = {SelectionMethod.IN_ORDER, *(without if machine.has_ssd else with_ssd)}
    return tuple(method for method in SelectionMethod if method not in left_out)


def check_method(method: SelectionMethod, machine: MachineResources) -> None:
    """Refuse a method that makes no sense on a machine.

    Raises:
        InvalidInputError: the machine has no SSDs to select for.
    """
    if method is SelectionMethod.CONSTRAINED_SSD and not machine.has_ssd:
        raise InvalidInputError("select", "constrained-ssd only on a machine with two SSD classes", str(method))


def weights_of(method: SelectionMethod, problem: SelectionProblem) -> ObjectiveWeights:
    """The single objective of a weighted or constrained method.

    Raises:
        InvalidInputError: the method has no single objective, or the machine no SSDs.
    """
    check_method(method, problem.machine)
    if method in _ALONE:
        return ObjectiveWeights(_ALONE[method])
    if method not in _TENTHS_OF_NODES:
        raise InvalidInputError("select", "a weighted or constrained method", str(method))
    nodes, burst_buffer, ssd = share_units(problem.machine)
    if problem.machine.has_ssd and method is SelectionMethod.WEIGHTED:
        return ObjectiveWeights((nodes, burst_buffer, ssd, ssd))
    tenths = _TENTHS_OF_NODES[method]
    return ObjectiveWeights((tenths * nodes, (10 - tenths) * burst_buffer, 0, 0))
