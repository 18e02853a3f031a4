"""Names of GPUs: NODE#NUMBER. Members of a fleet have GPUs where other jobs have whole nodes."""

from __future__ import annotations

_MARK = "#"
"""Not part of any node's name."""


def gpu_name(node: str, number: int) -> str:
    """The name of a GPU of a node, numbered from 0."""
    return f"{node}{_MARK}{number}"


def node_of(name: str) -> str:
    """The node of a GPU; a node's own name as it is."""
    return name.partition(_MARK)[0]


def visible_gpu(number: int, inherited: str) -> str:
    """CUDA_VISIBLE_DEVICES of a worker that has one GPU of its node.

    Args:
        number: The GPU's number on its node, from 0.
        inherited: CUDA_VISIBLE_DEVICES of who starts it, as a batch scheduler may have set it: numbers or names of the
            node's GPUs. Empty: it is not set.
    """
    usable = [name.strip() for name in inherited.split(",")]
    return usable[number] if number < len(usable) and usable[number] else str(number)


def gpu_number(name: str) -> int | None:
    """The number of a GPU on its node; None for the name of a node."""
    number = name.partition(_MARK)[2]
    return int(number) if number else None
