"""A problem as arrays of whole numbers, for the compiled searches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources, SelectionProblem

Ints = NDArray[np.int64]

_NO_LIMIT = 2**61
_MAX_VALUE = 2**61


@dataclass(frozen=True, slots=True)
class ProblemArrays:
    """A problem as the searches want it.

    Attributes:
        jobs: Shape (4, jobs): nodes, burst buffer in GB, whether it needs the large class, whether it is late.
        limits: Shape (7,): free nodes of the small and of the large class, free burst buffer, places, whether the
            reserved job needs the large class, and nodes and burst buffer that late jobs may take.
        objectives: Shape (4, jobs): what each job adds to f1 … f4, without spilling.
        spill_gb: What f4 loses with each node that spills into the large class.
    """

    jobs: Ints
    limits: Ints
    objectives: Ints
    spill_gb: int


def arrays_of(problem: SelectionProblem) -> ProblemArrays:
    """The arrays of a problem."""
    machine, free, reserved = problem.machine, problem.free, problem.reserved
    jobs = np.zeros((4, len(problem.jobs)), dtype=np.int64)
    objectives = np.zeros((4, len(problem.jobs)), dtype=np.int64)
    for index, job in enumerate(problem.jobs):
        large = machine.wants_large(job)
        jobs[:, index] = job.nodes, job.burst_buffer_gb, large, reserved is not None and reserved.late[index]
        objectives[:2, index] = job.nodes, job.burst_buffer_gb
        if machine.has_ssd:
            held = machine.large_ssd_gb if large else machine.small_ssd_gb
            objectives[2:, index] = job.nodes * job.ssd_gb, job.nodes * (job.ssd_gb - held)
    places = len(problem.jobs) if problem.places is None else problem.places
    limits = [free.small, free.large, free.burst_buffer_gb, places, 0, _NO_LIMIT, _NO_LIMIT]
    if reserved is not None:
        then, wanted = reserved.free_then, reserved.job
        large = machine.wants_large(wanted)
        room = (then.large if large else then.nodes) - wanted.nodes
        limits[4:] = large, room, then.burst_buffer_gb - wanted.burst_buffer_gb
    return ProblemArrays(
        jobs, np.array(limits, dtype=np.int64), objectives, machine.large_ssd_gb - machine.small_ssd_gb
    )


def share_units(machine: MachineResources) -> tuple[int, int, int]:
    """Whole numbers u so that u · amount compares shares of the machine: of nodes, burst buffer and SSD.

    A resource that the machine does not have counts 0.
    """
    totals = (machine.nodes, machine.burst_buffer_gb, machine.ssd_gb)
    common = math.lcm(*(total for total in totals if total))
    nodes, burst_buffer, ssd = (common // total if total else 0 for total in totals)
    return nodes, burst_buffer, ssd


def check_magnitude(machine: MachineResources, factor: int) -> None:
    """Refuse a machine whose shares can't be compared in 64 bits.

    Raises:
        InvalidInputError: the least common multiple of the machine's totals, times `factor`, is too large.
    """
    common = share_units(machine)[0] * machine.nodes
    if 8 * common * factor >= _MAX_VALUE:
        raise InvalidInputError(
            "machine", "totals with a smaller common multiple (round burst buffer and SSD), or a rounder factor", common
        )
