from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.sampling import partition_batch


@given(reference=st.integers(1, 3000), batch=st.integers(1, 300), workers=st.integers(1, 300))
def test_the_global_batch_is_exact(reference: int, batch: int, workers: int) -> None:
    partition = partition_batch(reference, batch, workers)
    assert len(partition.shares) == workers
    assert max(partition.shares) - min(partition.shares) <= 1
    for rank in range(workers):
        sizes = partition.micro_batches(rank)
        assert len(sizes) == partition.micro_steps
        assert sum(sizes) == partition.shares[rank]
        assert 1 <= min(sizes) <= max(sizes) <= batch
    assert partition.span(workers - 1)[0] + partition.shares[-1] == partition.global_batch
    assert partition.global_batch == partition.wanted or reference < workers or batch == 1
    if reference < workers:
        assert partition.global_batch == workers


def test_weights_make_the_gradient_that_of_the_whole_batch() -> None:
    partition = partition_batch(64, 8, 5)
    assert partition.shares == (13, 13, 13, 13, 12)
    assert partition.micro_steps == 2
    values = [math.sin(number) for number in range(64)]
    summed = []
    for rank in range(5):
        start, _ = partition.span(rank)
        total = 0.0
        for size in partition.micro_batches(rank):
            total += partition.weight(size) * sum(values[start : start + size]) / size
            start += size
        summed.append(total)
    assert sum(summed) / 5 == pytest.approx(sum(values) / 64)


@pytest.mark.parametrize("name", ["reference_batch", "batch_per_worker", "workers"])
def test_arguments_below_one_are_refused_by_name(name: str) -> None:
    arguments = {"reference_batch": 1, "batch_per_worker": 1, "workers": 1, name: 0}
    with pytest.raises(ValueError, match=f"^{name}: expected at least 1"):
        partition_batch(**arguments)
