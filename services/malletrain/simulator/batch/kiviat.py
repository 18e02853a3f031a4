"""Kiviat graphs: several metrics of each method, scaled from 0 (worst method) to 1 (best), and the area (§4.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from malletrain.simulator.batch.usage import UsageMetrics

WITHOUT_SSD = ("node usage", "burst buffer usage", "1 / wait", "1 / slowdown")
WITH_SSD = ("node usage", "burst buffer usage", "SSD usage", "1 / wasted SSD", "1 / wait", "1 / slowdown")


def kiviat_axes(metrics: Mapping[str, UsageMetrics]) -> tuple[str, ...]:
    """The axes for these methods."""
    return WITH_SSD if all(found.ssd_usage is not None for found in metrics.values()) else WITHOUT_SSD


def kiviat(metrics: Mapping[str, UsageMetrics]) -> dict[str, tuple[float, ...]]:
    """The scaled value of each method on each axis; 1 on an axis on which all methods are equal."""
    rows = {name: _values(found, len(kiviat_axes(metrics)) == len(WITH_SSD)) for name, found in metrics.items()}
    scales = [(min(column), max(column)) for column in zip(*rows.values(), strict=True)]
    return {
        name: tuple(
            (value - low) / (high - low) if high > low else 1.0 for value, (low, high) in zip(row, scales, strict=True)
        )
        for name, row in rows.items()
    }


def kiviat_area(values: Sequence[float]) -> float:
    """The area of a Kiviat graph by that of the largest possible one, 0 to 1."""
    products = (one * two for one, two in zip(values, (*values[1:], values[0]), strict=True))
    return math.fsum(products) / len(values)


def _values(found: UsageMetrics, ssd: bool) -> tuple[float, ...]:
    middle = (found.ssd_usage or 0.0, _reciprocal(found.ssd_wasted or 0.0)) if ssd else ()
    reciprocals = (_reciprocal(found.mean_wait_s), _reciprocal(found.mean_slowdown))
    return (found.node_usage, found.burst_buffer_usage, *middle, *reciprocals)


def _reciprocal(value: float) -> float:
    """1 / value; a value of 0 counts as the smallest that matters, so that it stays finite."""
    return 1.0 / max(value, 1e-9)
