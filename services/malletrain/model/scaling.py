"""Scales, scaling curves and what a change of scale costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_RATE = 1e-9
"""Samples/s below which a job does not run at all. Ratios of such rates mean nothing."""
MAX_RATE = 1e15
"""Of a declared curve, in samples/s: no plan fails by products of it with weights and seconds."""


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


@dataclass(frozen=True)
class ScaleCommand:
    """The newest scale that a job's launcher was told to use, so that Monitor knows what a pause of its batches was.

    Attributes:
        number: Number of the command within the job.
        unix_seconds: When, in seconds since the epoch.
        from_nodes: Scale before; 0: a start.
        to_nodes: Scale after.
        disturbed_unix_seconds: When something else happened first since it, or was under way: a worker failed or was
            lost, or nodes were taken during another change. A pause that lasts until then shows more than what this
            change costs. 0: nothing did.
    """

    number: int
    unix_seconds: float
    from_nodes: int
    to_nodes: int
    disturbed_unix_seconds: float = 0.0
