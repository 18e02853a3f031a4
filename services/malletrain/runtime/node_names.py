"""Names of nodes in requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from malletrain.runtime.errors import InvalidInputError

MAX_NODES = 100_000
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}\Z")
"""A host's name, as batch systems take it. Longer ones would be kept in the records of stimuli."""
_GPU_NUMBER = re.compile(r"(0|[1-9][0-9]{0,3})\Z")


def check_node_names(names: Sequence[str], field: str, part: str = "") -> tuple[str, ...]:
    """The names as they came.

    Args:
        names: What the request says.
        field: Path of the repeated field, for errors.
        part: Path of the name within an entry of it, such as `.node`.

    Raises:
        InvalidInputError: there are too many, or one is no name of a node.
    """
    if len(names) > MAX_NODES:
        raise InvalidInputError(field, f"at most {MAX_NODES} nodes", len(names))
    return tuple(check_node_name(name, f"{field}[{index}]{part}") for index, name in enumerate(names))


def check_assigned_names(names: Sequence[str], field: str) -> tuple[str, ...]:
    """Names of nodes, or of GPUs of nodes, as they came.

    Args:
        names: What the request says.
        field: Path of the repeated field, for errors.

    Raises:
        InvalidInputError: there are too many, or one is no name of a node or of a GPU.
    """
    if len(names) > MAX_NODES:
        raise InvalidInputError(field, f"at most {MAX_NODES} nodes", len(names))
    for index, name in enumerate(names):
        node, mark, number = name.partition("#")
        if not _NODE_NAME.match(node) or (mark and not _GPU_NUMBER.match(number)):
            raise InvalidInputError(f"{field}[{index}]", "the name of a node, or of a GPU as NODE#NUMBER", name)
    return tuple(names)


def check_node_name(name: str, field: str) -> str:
    """The name as it came.

    Args:
        name: What the request says.
        field: Path of the field, for errors.

    Raises:
        InvalidInputError: it is no name of a node.
    """
    if not _NODE_NAME.match(name):
        raise InvalidInputError(field, "the name of a node", name)
    return name
