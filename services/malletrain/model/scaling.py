"""Scales, scaling curves and what a change of scale costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A point of a scaling curve.

    Attributes:
        nodes: Scale in nodes.
        rate: Throughput at that scale in samples/s.
    """

    nodes: int
    rate: float


@dataclass(frozen=True, slots=True)
class RescaleStall:
    """How long a job stands still when it is rescaled.

    Attributes:
        from_nodes: Scale before, in nodes.
        to_nodes: Scale after, in nodes.
        seconds: Length of the stall in seconds.
    """

    from_nodes: int
    to_nodes: int
    seconds: float


def permitted_scales(min_nodes: int, max_nodes: int, permitted: Sequence[int] = ()) -> Sequence[int]:
    """Scales at which a job may run.

    Args:
        min_nodes: Smallest scale in nodes.
        max_nodes: Largest scale in nodes.
        permitted: The only permitted scales, ascending; empty where every scale between the bounds is.

    Returns:
        Scales in nodes, ascending.
    """
    return permitted or range(min_nodes, max_nodes + 1)
