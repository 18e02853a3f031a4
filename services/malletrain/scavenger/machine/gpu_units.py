"""Names of single GPUs where the scheduler's nodes are used GPU by GPU. Pure.

Such a GPU is a node to everything but the scheduler: it has a placeholder, an agent and a place in plans of its own.
The number in its name tells it from the node's others; which device it is, the scheduler decides when the placeholder
starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from malletrain.model.topology import MAX_LEVELS, GroupPath

_MARK = ".gpu"
_UNIT = re.compile(r"(.+)\.gpu(?:0|[1-9][0-9]{0,3})")
MAX_GPUS = 10_000
"""Of one node: names have four digits at most."""


def unit_name(node: str, number: int) -> str:
    """The name of a GPU of a node, numbered from 0, e.g. "n1.gpu0"."""
    return f"{node}.gpu{number}"


def node_of_unit(name: str) -> str:
    """The node of a GPU; the name of a node as it is."""
    match = _UNIT.fullmatch(name) if _MARK in name else None
    return name if match is None else match[1]


def path_of_unit(name: str, path: GroupPath) -> GroupPath:
    """The groups of a node or of a GPU, whose innermost group is its node.

    Args:
        name: Name of the node or GPU.
        path: The groups of its node, from the outermost level.
    """
    node = node_of_unit(name)
    return path if node == name else (*path[-(MAX_LEVELS - 1) :], node)


def units_of(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Nodes by the names under which they are used: one that is used GPU by GPU is its GPUs.

    Args:
        names: Names of nodes or of GPUs.
        known: All names that are in use.
    """
    by_node: dict[str, list[str]] = {}
    for name in known:
        if (node := node_of_unit(name)) != name:
            by_node.setdefault(node, []).append(name)
    return [unit for name in names for unit in by_node.get(name, [name])]


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
    """A predicate for GPU units which answers what `wanted` does for their node."""
    return lambda name: wanted(node_of_unit(name))
