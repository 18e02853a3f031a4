"""Points of scaling curves for tests."""

from __future__ import annotations

from malletrain.profiler.machine.points import CurvePoint


def measured_points(*pairs: tuple[int, float], error: float = 0.02, at: float = 1000.0) -> list[CurvePoint]:
    """Points measured over 100 steps, from pairs of nodes and rate."""
    return [CurvePoint(nodes, rate, 100, error, at) for nodes, rate in pairs]
