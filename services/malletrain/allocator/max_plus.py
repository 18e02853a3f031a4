"""One step of the dynamic programme: the best size of one job at every capacity.

That is a maximum over sizes s of v(s) + g(c - s). Over consecutive sizes up to u whose values lie on a line, as between
two points of a scaling curve, v(s) = v(u) - b (u - s), and what remains is the maximum of g(t) - b t in a window that
slides with c. A window of twice the width is the maximum of two halves: 32 sizes cost five comparisons and not 32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SHORT = 1024
"""Tables up to this length are added and compared for all sizes in two operations: numpy's calls cost more there."""
_DENSE = 4
"""Unless fewer than one in so many sizes is permitted."""
_RUN = 8
"""Shortest run of sizes for which a window pays."""
_STRAIGHT = 1e-14
"""How far values may lie off the line, relative to the largest: rounding, far below what counts as a tie."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def best_of_sizes(after: Floats, length: int, sizes: Ints, values: Floats) -> Floats:
    """max over sizes s of v(s) + g(c - s), for capacities c from 0 to `length` - 1.

    Args:
        after: g by capacity in nodes; more than its last entry adds nothing.
        length: Number of capacities.
        sizes: s in nodes, ascending, 0 first.
        values: v(s).
    """
    largest = int(sizes[-1])
    # Entry i is g(i - largest): no fewer than 0 nodes, nothing gained beyond the end.
    padded = np.full(largest + length, after[-1])
    padded[:largest] = -np.inf
    padded[largest : largest + len(after)] = after[:length]
    if length <= _SHORT and len(sizes) * _DENSE >= largest:
        return _all_at_once(padded, length, sizes, values)
    best = np.full(length, -np.inf)
    scratch = np.empty(length)
    for first, last in _runs(sizes, values):
        if last - first < _RUN or not _straight(values[first:last], _tolerance(values)):
            for size, value in zip(sizes[first:last].tolist(), values[first:last].tolist(), strict=True):
                np.add(padded[largest - size : largest - size + length], value, out=scratch)
                np.maximum(best, scratch, out=best)
        else:
            line = _Line(int(sizes[last - 1]), last - first, float(values[first]), float(values[last - 1]))
            np.maximum(best, line.best(padded[largest - line.top :], length), out=best)
    return best


def _all_at_once(padded: Floats, length: int, sizes: Ints, values: Floats) -> Floats:
    largest = int(sizes[-1])
    dense = np.full((largest + 1, 1), -np.inf)
    dense[largest - sizes, 0] = values
    # Row i is the padded table from entry i on: a view without a copy.
    step = padded.itemsize
    shifted: Floats = np.ndarray((largest + 1, length), np.float64, padded, strides=(step, step))
    return np.asarray((shifted + dense).max(axis=0))


class _Line:
    """Consecutive sizes up to `top`, `width` of them, with values on a line from `low` to `high`."""

    def __init__(self, top: int, width: int, low: float, high: float) -> None:
        self.top = top
        self.width = width
        self.high = high
        self.slope = (high - low) / (width - 1)

    def best(self, table: Floats, length: int) -> Floats:
        """The best of these sizes at each capacity; `table` starts at what the largest leaves of 0 nodes."""
        slope = self.slope * np.arange(length + self.width - 1)
        window = table[: length + self.width - 1] - slope
        width = 1
        while 2 * width <= self.width:
            window = np.maximum(window[:-width], window[width:])
            width *= 2
        if width < self.width:
            rest = self.width - width
            window = np.maximum(window[:-rest], window[rest:])
        window += slope[:length]
        window += self.high
        return window


def _runs(sizes: Ints, values: Floats) -> list[tuple[int, int]]:
    """Index ranges (first, last + 1) that cover all sizes; one of `_RUN` and more has no gap and no bend in it."""
    if len(sizes) < _RUN:
        return [(0, len(sizes))]
    slopes = np.diff(values)
    follows = np.diff(sizes) == 1
    goes_on = follows[1:] & follows[:-1] & (np.abs(np.diff(slopes)) <= 4 * _tolerance(values))
    ends = [*(np.flatnonzero(~goes_on) + 2).tolist(), len(sizes)]
    return list(zip([0, *ends], ends, strict=False))


def _straight(values: Floats, tolerance: float) -> bool:
    line = np.linspace(values[0], values[-1], len(values))
    return bool(np.abs(values - line).max() <= tolerance)


def _tolerance(values: Floats) -> float:
    return _STRAIGHT * float(np.abs(values).max())
