"""What a search may choose for each parameter, as its user writes it. Pure; distributions of Optuna pass unchanged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.caller.option_values import nearest
from malletrain.runtime.errors import InvalidInputError

MAX_PARAMETERS = 100
_MAX_CHOICES = 1000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_KEYS = ("low", "high", "log", "step")
_EXPECTED = "(low, high), (low, high, 'log'), a list of choices, or a distribution of Optuna"
Choice = None | bool | int | float | str
Number = int | float


@dataclass(frozen=True)
class SearchRange:
    """Numbers from one bound to another, both included.

    Attributes:
        low: The smallest.
        high: The largest.
        whole: Whether they are whole numbers.
        log: Whether orders of magnitude are equally likely.
        step: Distance between two of them; None: 1 for whole numbers, else any.
    """

    low: Number
    high: Number
    whole: bool
    log: bool = False
    step: Number | None = None


@dataclass(frozen=True)
class SearchChoices:
    """Values without an order.

    Attributes:
        values: At least one.
    """

    values: tuple[Choice, ...]


def parse_space(space: object) -> dict[str, object]:
    """What may be chosen for each parameter: `SearchRange`, `SearchChoices`, or what is neither, unchanged.

    Args:
        space: By the name of each parameter `(low, high)`, `(low, high, "log")`, `(low, high, step)`, a list of
            choices, or `{"low": 1, "high": 8}` with `log` or `step`.

    Raises:
        InvalidInputError: an entry is something else; the error names it, e.g. `space.lr`.
    """
    if not isinstance(space, Mapping) or not space:
        raise InvalidInputError("space", "a dictionary with what may be chosen for each parameter", space)
    if len(space) > MAX_PARAMETERS:
        raise InvalidInputError("space", f"at most {MAX_PARAMETERS} parameters", len(space))
    parsed: dict[str, object] = {}
    for name, entry in space.items():
        if not isinstance(name, str) or not _NAME.match(name):
            raise InvalidInputError("space", "names of 1 to 64 letters, digits, _ and -", name)
        parsed[name] = _entry(f"space.{name}", entry)
    return parsed


def _entry(field: str, entry: object) -> object:
    if isinstance(entry, tuple):
        return _range_of_tuple(field, entry)
    if isinstance(entry, Mapping):
        return _range_of_table(field, entry)
    if isinstance(entry, str | bytes | int | float | None):
        raise InvalidInputError(field, _EXPECTED, entry)
    if isinstance(entry, Sequence | range):
        return _choices(field, entry)
    return entry


def _choices(field: str, entry: Sequence[object]) -> SearchChoices:
    if not 1 <= len(entry) <= _MAX_CHOICES:
        raise InvalidInputError(field, f"1 to {_MAX_CHOICES} choices", len(entry))
    values: list[Choice] = []
    for value in entry:
        if value is not None and not isinstance(value, bool | int | float | str):
            raise InvalidInputError(field, "choices that are numbers, texts, True, False or None", value)
        values.append(value)
    if len({(type(value), value) for value in values}) < len(values):
        raise InvalidInputError(field, "each choice once", list(entry))
    return SearchChoices(tuple(values))


def _range_of_tuple(field: str, entry: tuple[object, ...]) -> SearchRange:
    if len(entry) not in (2, 3):
        raise InvalidInputError(field, _EXPECTED, entry)
    last = entry[2] if len(entry) == 3 else None
    if isinstance(last, str):
        if last != "log":
            raise InvalidInputError(field, "'log' or a step behind the bounds", last)
        return _range(field, entry[0], entry[1], log=True, step=None)
    return _range(field, entry[0], entry[1], log=False, step=last)


def _range_of_table(field: str, entry: Mapping[object, object]) -> SearchRange:
    for key in entry:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InvalidInputError(
                field, f"a known key, such as {near}" if near else f"one of {', '.join(_KEYS)}", key
            )
    if "low" not in entry or "high" not in entry:
        raise InvalidInputError(field, "low and high", dict(entry))
    log = entry.get("log", False)
    if not isinstance(log, bool):
        raise InvalidInputError(f"{field}.log", "true or false", log)
    return _range(field, entry["low"], entry["high"], log=log, step=entry.get("step"))


def _range(field: str, low: object, high: object, *, log: bool, step: object) -> SearchRange:
    bounds = _number(field, low), _number(field, high)
    whole = all(isinstance(bound, int) for bound in bounds)
    if bounds[0] > bounds[1]:
        raise InvalidInputError(field, "low not above high", bounds)
    if log and bounds[0] <= 0:
        raise InvalidInputError(field, "low above 0 with log", bounds[0])
    if log and step is not None:
        raise InvalidInputError(field, "log or a step, and not both", step)
    stride = None if step is None else _number(field, step)
    if stride is not None and (stride <= 0 or (whole and not isinstance(stride, int))):
        raise InvalidInputError(field, f"a {'whole ' if whole else ''}step above 0", stride)
    if not whole:
        bounds = float(bounds[0]), float(bounds[1])
    return SearchRange(bounds[0], bounds[1], whole, log, stride)


def _number(field: str, value: object) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInputError(field, "finite numbers", value)
    return value
