"""One step of the dynamic programme against its definition, for short tables and for long ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.max_plus import Floats, Ints, best_of_sizes


@st.composite
def choices(draw: st.DrawFn) -> tuple[Ints, Floats]:
    """Sizes with gaps, and values on a few lines with jumps between them."""
    most = draw(st.integers(0, 70))
    gone = draw(st.sets(st.integers(1, 70), max_size=4))
    sizes = np.asarray([size for size in range(most + 1) if size not in gone], dtype=np.int64)
    knots = draw(st.lists(st.integers(1, 70), max_size=4, unique=True).map(sorted))
    rates = draw(st.lists(st.floats(0, 1e5), min_size=len(knots), max_size=len(knots)))
    values = np.interp(sizes, [0, *knots], [0.0, *rates])
    stall = draw(st.sampled_from([0.0, 0.3, 5000.0]))
    present = draw(st.integers(0, 70))
    return sizes, np.where(sizes > present, values * (1 - stall / 5001), values)


def by_definition(after: Floats, length: int, sizes: Ints, values: Floats) -> Floats:
    best = np.full(length, -np.inf)
    for capacity in range(length):
        fits = sizes <= capacity
        left = np.minimum(capacity - sizes[fits], len(after) - 1)
        best[capacity] = (values[fits] + after[left]).max()
    return best


@settings(deadline=None, max_examples=80)
@given(
    given_choices=choices(), table=st.sampled_from([1, 50, 900, 1400]), more=st.integers(0, 70), seed=st.integers(0, 9)
)
def test_it_is_the_best_size_at_every_capacity(
    given_choices: tuple[Ints, Floats], table: int, more: int, seed: int
) -> None:
    sizes, values = given_choices
    after = np.maximum.accumulate(np.random.default_rng(seed).uniform(-10.0, 1e6, table))
    length = table + min(more, int(sizes[-1]))
    found = best_of_sizes(after, length, sizes, values)
    assert found == pytest.approx(by_definition(after, length, sizes, values), rel=1e-13, abs=1e-8)
