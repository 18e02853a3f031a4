from __future__ import annotations

from typing import Any

import pytest

from malletrain.client.learning_rate import Ramp
from malletrain.client.rates import Rates


def groups() -> list[dict[str, Any]]:
    return [{"lr": 0.1}, {"lr": 0.01}]


def test_rates_follow_the_global_batch_up_gradually_and_down_at_once() -> None:
    own = groups()
    rates = Rates(own, 64, "linear", 1000)
    ramp = rates.towards(Ramp(), 128, 0)
    assert [ramp.factor(samples) for samples in (0, 500, 1000)] == [1.0, 1.5, 2.0]
    rates.set(own, ramp.factor(500))
    assert [group["lr"] for group in own] == pytest.approx([0.15, 0.015])
    assert rates.towards(ramp, 32, 500).factor(500) == 0.5


def test_between_rescales_the_rates_are_the_users() -> None:
    own = groups()
    rates = Rates(own, 64, "linear", 0)
    rates.set(own, 2.0)
    own[0]["lr"] = 0.007
    rates.set(own, 2.0)
    assert own[0]["lr"] == 0.007
    rates.set(own, 2.0, anew=True)
    assert own[0]["lr"] == pytest.approx(0.2)


def test_without_a_reference_nothing_is_touched() -> None:
    own = groups()
    rates = Rates(own, None, "linear", 0)
    assert rates.towards(Ramp(), 4096, 10) == Ramp()
    rates.set(own, 3.0, anew=True)
    assert own == groups()
