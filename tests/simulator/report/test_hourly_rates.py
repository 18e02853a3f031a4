"""HourlyRates, and what is refused of them."""

from __future__ import annotations

import math
import re

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.report.answers import HourlyRates


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"node_hour": -0.01}, "--rate: expected a charge for an hour, 0 to 1e+09"),
        ({"node_hour": math.nan}, "--rate: expected a charge for an hour"),
        ({"node_hour": math.inf}, "--rate: expected a charge for an hour"),
        ({"gpu_hour": -1.0, "gpus_per_node": 1}, "--gpu-rate: expected a charge for an hour"),
        ({"gpu_hour": 1.0}, "--gpu-rate: expected --gpus-per-node beside it"),
        ({"gpus_per_node": 0}, "--gpus-per-node: expected 1 to 1024"),
        ({"node_hour": 1.0, "currency": "<b>"}, "--currency: expected up to 16 letters"),
        ({"currency": "EUR"}, "--currency: expected --rate or --gpu-rate beside it"),
    ],
)
def test_what_makes_no_sense_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        HourlyRates(**given)  # type: ignore[arg-type]


def test_both_prices_add_up() -> None:
    assert HourlyRates().of_node_hour is None
    assert HourlyRates(gpus_per_node=4).of_node_hour is None
    assert HourlyRates(node_hour=0.0).of_node_hour == 0.0
    assert HourlyRates(node_hour=1.5, gpu_hour=0.25, gpus_per_node=8).of_node_hour == 3.5
