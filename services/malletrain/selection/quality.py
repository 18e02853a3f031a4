"""How near a found set of solutions is to the true Pareto set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources, Objectives


def generational_distance(found: Sequence[Objectives], true: Sequence[Objectives], machine: MachineResources) -> float:
    """Mean distance of the found points to the nearest true one, with objectives as shares of the machine.

    Raises:
        InvalidInputError: one of the sets is empty.
    """
    if not found or not true:
        raise InvalidInputError("found, true", "at least one point each", (len(found), len(true)))
    exact = [_shares(point, machine) for point in true]
    return fmean(min(math.dist(_shares(point, machine), other) for other in exact) for point in found)


def _shares(point: Objectives, machine: MachineResources) -> tuple[float, float, float, float]:
    ssd = machine.ssd_gb or 1
    return (
        point.nodes / machine.nodes,
        point.burst_buffer_gb / (machine.burst_buffer_gb or 1),
        point.ssd_gb / ssd,
        point.wasted_gb / ssd,
    )
