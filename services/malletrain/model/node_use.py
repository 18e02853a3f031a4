"""What an idle node is used for. Pure."""

from __future__ import annotations

from collections.abc import Container
from enum import StrEnum


class NodeUse(StrEnum):
    """What an idle node is used for. All uses together are what the main scheduler has offered."""

    TRAINING = "training"
    BOOTING = "booting"
    STALLED = "stalled"
    STOPPING = "stopping"
    UNASSIGNED = "unassigned"


def use_of(
    name: str, *, stopping: bool, stalled: bool, commanded: Container[str], confirmed: Container[str]
) -> NodeUse:
    """What a node, or a GPU of one, is used for that a job holds.

    A job trains on what its workers have confirmed, also while others join.

    Args:
        name: The node or GPU.
        stopping: Whether the processes of the job are being ended.
        stalled: Whether it misses its batches.
        commanded: What its supervisor was told to use.
        confirmed: What its workers train on.
    """
    if stopping or name not in commanded:
        return NodeUse.STOPPING
    if name not in confirmed:
        return NodeUse.BOOTING
    return NodeUse.STALLED if stalled else NodeUse.TRAINING
