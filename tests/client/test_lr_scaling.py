from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch")

import torch

from malletrain.client.lr_scaling import LearningRates, RateRamp, scaled_rate, scaling_rule


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


class OfAnotherLibrary(torch.optim.Adam):
    """Derived from a known one."""


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (torch.optim.SGD, "linear"),
        (torch.optim.Rprop, "linear"),
        (torch.optim.AdamW, "sqrt"),
        (torch.optim.NAdam, "sqrt"),
        (torch.optim.RMSprop, "sqrt"),
        (torch.optim.Adagrad, "sqrt"),
        (OfAnotherLibrary, "sqrt"),
    ],
)
def test_adaptive_optimizers_follow_the_square_root(optimizer: Callable[..., torch.optim.Optimizer], rule: str) -> None:
    made = optimizer([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert scaling_rule(made, "auto") == rule
    assert scaling_rule(made, "linear") == "linear"
    assert scaling_rule(made, "sqrt") == "sqrt"


def test_up_gradually_and_down_at_once() -> None:
    ramp = RateRamp().towards(4.0, 1000, 600)
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
    samples, ramp = 0, RateRamp()
    for more, factor in steps:
        samples += more
        before = ramp.factor(samples)
        ramp = ramp.towards(factor, samples, warmup)
        assert ramp.factor(samples + warmup) == factor or before == factor
        if warmup:
            assert ramp.factor(samples) <= before
        else:
            assert ramp.factor(samples) == factor


def groups() -> list[dict[str, Any]]:
    return [{"lr": 0.1}, {"lr": 0.01}]


def test_rates_follow_the_global_batch_up_gradually_and_down_at_once() -> None:
    own = groups()
    rates = LearningRates(own, 64, "linear", 1000)
    ramp = rates.ramp_to(RateRamp(), 128, 0)
    assert [ramp.factor(samples) for samples in (0, 500, 1000)] == [1.0, 1.5, 2.0]
    rates.apply(own, ramp.factor(500))
    assert [group["lr"] for group in own] == pytest.approx([0.15, 0.015])
    assert rates.ramp_to(ramp, 32, 500).factor(500) == 0.5


def test_between_rescales_the_rates_are_the_users() -> None:
    own = groups()
    rates = LearningRates(own, 64, "linear", 0)
    rates.apply(own, 2.0)
    own[0]["lr"] = 0.007
    rates.apply(own, 2.0)
    assert own[0]["lr"] == 0.007
    rates.apply(own, 2.0, force=True)
    assert own[0]["lr"] == pytest.approx(0.2)


def test_without_a_reference_nothing_is_touched() -> None:
    own = groups()
    rates = LearningRates(own, None, "linear", 0)
    assert rates.ramp_to(RateRamp(), 4096, 10) == RateRamp()
    rates.apply(own, 3.0, force=True)
    assert own == groups()
