"""What a search may choose: as tuples, lists and tables; what is wrong is named."""

from __future__ import annotations

import pytest

from malletrain.caller.searching.space import SearchChoices, SearchRange, parse_space
from malletrain.caller.searching.studies import distributions_of
from malletrain.runtime.errors import InvalidInputError

optuna = pytest.importorskip("optuna", reason="needs malletrain[search]")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ((1, 8), SearchRange(1, 8, whole=True)),
        ((1, 8.0), SearchRange(1.0, 8.0, whole=False)),
        ((1e-5, 0.1, "log"), SearchRange(1e-5, 0.1, whole=False, log=True)),
        ((0, 100, 10), SearchRange(0, 100, whole=True, step=10)),
        ({"low": 1, "high": 8, "log": True}, SearchRange(1, 8, whole=True, log=True)),
        (["adam", "sgd"], SearchChoices(("adam", "sgd"))),
        ([True, 1, None], SearchChoices((True, 1, None))),
        (range(3), SearchChoices((0, 1, 2))),
    ],
)
def test_what_is_meant(entry: object, expected: object) -> None:
    assert parse_space({"p": entry}) == {"p": expected}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "space: expected a dictionary"),
        ({"a b": (1, 2)}, "space: expected names of 1 to 64"),
        ({"p": (2, 1)}, r"space\.p: expected low not above high"),
        ({"p": (0, 1, "log")}, r"space\.p: expected low above 0 with log"),
        ({"p": (1, 2, "lin")}, r"space\.p: expected 'log' or a step"),
        ({"p": (1, 9, 0.5)}, r"space\.p: expected a whole step above 0"),
        ({"p": (1, float("nan"))}, r"space\.p: expected finite numbers"),
        ({"p": [1, 1]}, r"space\.p: expected each choice once"),
        ({"p": []}, r"space\.p: expected 1 to 1000 choices, got 0"),
        ({"p": "adam"}, r"space\.p: expected \(low, high\)"),
        ({"p": {"low": 1, "hihg": 2}}, r"space\.p: expected a known key, such as high, got 'hihg'"),
        ({"p": {"low": 1}}, r"space\.p: expected low and high"),
        ({"p": {"low": 1, "high": 2, "log": True, "step": 1}}, "log or a step, and not both"),
        ({f"p{number}": (1, 2) for number in range(101)}, "at most 100 parameters"),
    ],
)
def test_what_is_wrong_is_named(space: object, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_space(space)


def test_distributions_of_optuna() -> None:
    own = optuna.distributions.FloatDistribution(0, 1)
    found = distributions_of(parse_space({"a": (1, 8), "b": (1e-5, 0.1, "log"), "c": ["x", "y"], "d": own}))
    assert found == {
        "a": optuna.distributions.IntDistribution(1, 8),
        "b": optuna.distributions.FloatDistribution(1e-5, 0.1, log=True),
        "c": optuna.distributions.CategoricalDistribution(("x", "y")),
        "d": own,
    }
    with pytest.raises(InvalidInputError, match=r"space\.e: expected .* a distribution of Optuna"):
        distributions_of(parse_space({"e": object()}))
