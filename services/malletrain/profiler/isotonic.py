"""Isotonic regression: the nearest sequence that never falls."""

from __future__ import annotations

from collections.abc import Sequence


def non_decreasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The sequence that never falls with the least weighted sum of squared differences (pool adjacent violators).

    Args:
        values: What should not fall.
        weights: Weight of each value, above 0.
    """
    # Blocks of pooled values: mean, weight, length.
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, total, length = blocks.pop()
            pooled = total + block[1]
            block = ((mean * total + block[0] * block[1]) / pooled, pooled, length + block[2])
        blocks.append(block)
    return [mean for mean, _, length in blocks for _ in range(length)]
