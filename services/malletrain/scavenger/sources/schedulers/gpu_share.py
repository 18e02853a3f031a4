"""Single GPUs, and what comes with each: the same for all schedulers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from malletrain.scavenger.machine.gpu_units import node_of_unit


@dataclass(frozen=True)
class GpuShare:
    """What a placeholder of one GPU asks for beside it.

    Attributes:
        cpus: CPUs; 0: the node's CPUs by its GPUs.
        memory_mib: Memory in MiB; 0: the node's memory by its GPUs.
    """

    cpus: int = 0
    memory_mib: int = 0


def by_node(wanted: Callable[[str], bool]) -> Callable[[str], bool]:
    """The same for a unit as for its node."""
    return lambda name: wanted(node_of_unit(name))
