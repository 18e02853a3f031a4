from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.learning_rate import Ramp, accumulation, scaled_rate


def test_the_rate_follows_the_batch() -> None:
    # Goyal et al.: 0.1 for 256 images becomes 3.2 for 8192.
    assert scaled_rate(0.1, 256, 8192) == pytest.approx(3.2)
    assert scaled_rate(0.1, 256, 1024, "sqrt") == pytest.approx(0.2)
    assert scaled_rate(0.1, 256, 64) == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("reference", "batch", "rule", "name"),
    [(0, 1, "linear", "reference_batch"), (1, 0, "linear", "batch"), (1, 1, "cubic", "rule")],
)
def test_what_makes_no_sense_is_refused_by_name(reference: int, batch: int, rule: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        scaled_rate(0.1, reference, batch, rule)  # type: ignore[arg-type]


def test_up_gradually_and_down_at_once() -> None:
    ramp = Ramp().towards(4.0, 1000, 600)
    assert [ramp.factor(samples) for samples in (1000, 1200, 1600, 9999)] == [1.0, 2.0, 4.0, 4.0]
    fallen = ramp.towards(1.5, 1200, 600)
    assert fallen.factor(1200) == 1.5
    # On the way up from the middle of another way up: no jump.
    assert ramp.towards(8.0, 1200, 600).factor(1200) == 2.0
    assert ramp.towards(4.0, 1200, 600) is ramp


@given(
    steps=st.lists(st.tuples(st.integers(0, 500), st.sampled_from([0.5, 1.0, 2.0, 4.0])), max_size=20),
    warmup=st.integers(0, 400),
)
def test_the_factor_never_jumps_up(steps: list[tuple[int, float]], warmup: int) -> None:
    samples, ramp = 0, Ramp()
    for more, factor in steps:
        samples += more
        before = ramp.factor(samples)
        ramp = ramp.towards(factor, samples, warmup)
        assert ramp.factor(samples + warmup) == factor or before == factor
        if warmup:
            assert ramp.factor(samples) <= before
        else:
            assert ramp.factor(samples) == factor


@given(reference=st.integers(1, 3000), batch=st.integers(1, 300), workers=st.integers(1, 300))
def test_the_batch_is_held_exactly(reference: int, batch: int, workers: int) -> None:
    held = accumulation(reference, batch, workers)
    assert len(held.shares) == workers
    assert max(held.shares) - min(held.shares) <= 1
    for rank in range(workers):
        sizes = held.micro_batches(rank)
        assert len(sizes) == held.micro_steps
        assert sum(sizes) == held.shares[rank]
        assert 1 <= min(sizes) <= max(sizes) <= batch
    assert held.span(workers - 1)[0] + held.shares[-1] == held.global_batch
    assert held.exact or reference < workers or batch == 1
    if reference < workers:
        assert held.global_batch == workers


def test_weights_make_the_gradient_that_of_the_whole_batch() -> None:
    held = accumulation(64, 8, 5)
    assert held.shares == (13, 13, 13, 13, 12)
    assert held.micro_steps == 2
    values = [math.sin(number) for number in range(64)]
    summed = []
    for rank in range(5):
        start, _ = held.span(rank)
        total = 0.0
        for size in held.micro_batches(rank):
            total += held.weight(size) * sum(values[start : start + size]) / size
            start += size
        summed.append(total)
    assert sum(summed) / 5 == pytest.approx(sum(values) / 64)


@pytest.mark.parametrize("name", ["reference_batch", "batch_per_worker", "workers"])
def test_nothing_can_be_divided_among_nobody(name: str) -> None:
    arguments = {"reference_batch": 1, "batch_per_worker": 1, "workers": 1, name: 0}
    with pytest.raises(ValueError, match=f"^{name}: expected at least 1"):
        accumulation(**arguments)
