from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.sampling import EpochOrder, shuffle_samples


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 7),
    scales=st.lists(st.integers(1, 6), min_size=1, max_size=60),
    seed=st.integers(0, 3),
)
def test_over_any_scales_each_sample_of_an_epoch_is_seen_once(
    size: int, batch: int, scales: list[int], seed: int
) -> None:
    seen: list[int] = []
    for workers in scales:
        position = len(seen)
        for rank in range(workers):
            # Every worker has an order of its own: nothing is shared but the counter.
            seen += EpochOrder(size, seed).share(position, batch, rank)
    for start in range(0, len(seen) - size + 1, size):
        assert sorted(seen[start : start + size]) == list(range(size))


def test_epochs_differ_and_seeds_decide() -> None:
    order = EpochOrder(50, seed=1)
    assert order.span(0, 50) != order.span(50, 50)
    assert order.span(0, 50) == EpochOrder(50, seed=1).span(0, 50)
    assert order.span(0, 50) != EpochOrder(50, seed=2).span(0, 50)


def test_going_back_after_a_rollback_gives_the_same_samples() -> None:
    order = EpochOrder(10, seed=1)
    first = order.span(95, 10)
    order.span(300, 10)
    assert order.span(95, 10) == first


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="size"):
        EpochOrder(0)


def test_the_permutation_is_whole() -> None:
    assert sorted(shuffle_samples(9, 4)) == list(range(9))
