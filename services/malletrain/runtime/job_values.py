"""Values of jobs as texts, and their checks: `malletrain submit --value`, messages and job sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from malletrain.model.goodput import (
    MAX_BATCH,
    MAX_NOISE_SCALE,
    MIN_NOISE_SCALE,
    GoodputTerms,
    StatisticalEfficiency,
)
from malletrain.model.job_value import (
    DEFAULT_URGENCY,
    LINEAR_VALUE,
    MAX_POINTS,
    MAX_SECONDS,
    MAX_SPEEDUP,
    MAX_URGENCY,
    MAX_VALUE,
    MIN_SPEEDUP,
    Deadline,
    SpeedValue,
    ValueCurve,
    ValuePoint,
)
from malletrain.runtime.errors import InvalidInputError

FORMS = "linear, diminishing=EXPONENT, points=SPEEDUP:VALUE,…, deadline=TIME or goodput"
_MIN_UNIX_SECONDS = 1e9
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def check_curve(at: str, curve: ValueCurve) -> None:
    """Check a value curve of a problem. Those of jobs have a least speedup, too: `check_value`.

    Raises:
        InvalidInputError: it is not valid; the error names the field below `at`.
    """
    if not 0 < curve.exponent <= 1:
        raise InvalidInputError(f"{at}.exponent", "above 0 and at most 1", curve.exponent)
    if len(curve.points) > MAX_POINTS:
        raise InvalidInputError(f"{at}.points", f"at most {MAX_POINTS} points", len(curve.points))
    before = 0.0
    for index, point in enumerate(curve.points):
        if not before < point.speedup <= MAX_SPEEDUP:
            raise InvalidInputError(
                f"{at}.points[{index}].speedup", f"above {before:g} and at most {MAX_SPEEDUP:g}", point.speedup
            )
        if not 0 <= point.value <= MAX_VALUE:
            raise InvalidInputError(f"{at}.points[{index}].value", f"0 to {MAX_VALUE:g}", point.value)
        before = point.speedup
    if not (math.isfinite(curve.needed_rate) and curve.needed_rate >= 0):
        raise InvalidInputError(f"{at}.needed_rate", "a finite number of at least 0", curve.needed_rate)
    _check_urgency(at, curve.urgency)
    if curve.efficiency is not None:
        _check_efficiency(f"{at}.efficiency", curve.efficiency)


def _check_efficiency(at: str, efficiency: StatisticalEfficiency) -> None:
    _check_batch(f"{at}.batch_per_node", efficiency.batch_per_node)
    _check_batch(f"{at}.initial_batch", efficiency.initial_batch)
    _check_noise_scale(f"{at}.noise_scale", efficiency.noise_scale)


def _check_batch(field: str, samples: float) -> None:
    if not 0 < samples <= MAX_BATCH:
        raise InvalidInputError(field, f"above 0 and at most {MAX_BATCH:.0f} samples", samples)


def _check_noise_scale(field: str, samples: float) -> None:
    if not MIN_NOISE_SCALE <= samples <= MAX_NOISE_SCALE:
        raise InvalidInputError(field, f"{MIN_NOISE_SCALE:g} to {MAX_NOISE_SCALE:g} samples", samples)


def _check_goodput(at: str, terms: GoodputTerms) -> None:
    """Check what is declared; what is 0 is not declared."""
    if terms.initial_batch != 0:
        _check_batch(f"{at}.initial_batch", terms.initial_batch)
    if terms.batch_per_node != 0:
        _check_batch(f"{at}.batch_per_node", terms.batch_per_node)
    if terms.noise_scale != 0:
        _check_noise_scale(f"{at}.noise_scale", terms.noise_scale)


def check_value(at: str, value: SpeedValue, target_samples: float) -> None:
    """Check the value of a job.

    Args:
        at: Name of the field.
        target_samples: After so many samples it is complete; 0: there is no target.

    Raises:
        InvalidInputError: it is not valid; the error names the field below `at`.
    """
    check_curve(at, value.curve)
    # Speedups ascend. Problems are not checked for it: jobs that were stored earlier may have smaller ones.
    if value.curve.points and value.curve.points[0].speedup < MIN_SPEEDUP:
        expected = f"{MIN_SPEEDUP:g} to {MAX_SPEEDUP:g}"
        raise InvalidInputError(f"{at}.points[0].speedup", expected, value.curve.points[0].speedup)
    if value.goodput is not None:
        _check_goodput(f"{at}.goodput", value.goodput)
    if value.deadline is None:
        return
    if not 0 < value.deadline.seconds <= MAX_SECONDS:
        raise InvalidInputError(f"{at}.deadline", f"above 0 and at most {MAX_SECONDS:g} s", value.deadline.seconds)
    _check_urgency(f"{at}.deadline", value.deadline.urgency)
    if target_samples <= 0:
        raise InvalidInputError(f"{at}.deadline", "target_samples beside it: how much is to be done by then")


def _check_urgency(at: str, urgency: float) -> None:
    if not 1 <= urgency <= MAX_URGENCY:
        raise InvalidInputError(f"{at}.urgency", f"1 to {MAX_URGENCY:g}", urgency)


def parse_value(text: str, field: str = "--value") -> SpeedValue:
    """The value that a text describes: see FORMS.

    `deadline=` takes a time since the submission (90m, 24h, 7d) or seconds since the epoch, and may name the urgency
    after a colon. `goodput=` takes initial batch, samples of a node and noise scale, each of which may be left out.

    Raises:
        InvalidInputError: the text has another form; the error names `field`.
    """
    form, _, rest = text.strip().partition("=")
    readers: dict[str, Callable[[str, str], SpeedValue]] = {
        "diminishing": _diminishing,
        "points": _points,
        "deadline": _deadline,
        "goodput": _goodput,
    }
    if text.strip() in ("", "linear"):
        return LINEAR_VALUE
    if form not in readers:
        raise InvalidInputError(field, FORMS, text)
    value = readers[form](rest, field)
    try:
        check_value("", value, 1)
    except InvalidInputError as error:
        raise InvalidInputError(field, f"{error.field.strip('.')}: {error.expected}", text) from None
    return value


def _number(text: str, field: str, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInputError(field, expected, text)
    return number


def _diminishing(text: str, field: str) -> SpeedValue:
    return SpeedValue(ValueCurve(exponent=_number(text, field, "diminishing=EXPONENT, e.g. diminishing=0.5")))


def _points(text: str, field: str) -> SpeedValue:
    number = partial(_number, field=field, expected="points=SPEEDUP:VALUE,…, e.g. points=1:1,4:3,8:3.5")
    pairs = [entry.partition(":") for entry in text.split(",")]
    return SpeedValue(ValueCurve(points=tuple(ValuePoint(number(left), number(right)) for left, _, right in pairs)))


def _deadline(text: str, field: str) -> SpeedValue:
    expected = f"deadline=TIME or deadline=TIME:URGENCY with a time such as 90m, 24h, 7d or {_MIN_UNIX_SECONDS:.0f}"
    time, colon, urgency = text.partition(":")
    unit = _UNITS.get(time[-1:])
    seconds = _number(time[:-1] if unit else time, field, expected) * (unit or 1.0)
    if not unit and seconds < _MIN_UNIX_SECONDS:
        raise InvalidInputError(field, expected, text)
    times = _number(urgency, field, expected) if colon else DEFAULT_URGENCY
    return SpeedValue(deadline=Deadline(seconds, after_submission=unit is not None, urgency=times))


def _goodput(text: str, field: str) -> SpeedValue:
    expected = "goodput or goodput=INITIAL_BATCH:BATCH_PER_NODE:NOISE_SCALE, e.g. goodput=64:32:1500 or goodput=64"
    parts = text.split(":")
    if len(parts) > 3:
        raise InvalidInputError(field, expected, text)
    return SpeedValue(goodput=GoodputTerms(*(_number(part, field, expected) if part else 0.0 for part in parts)))


def value_text(value: SpeedValue) -> str:
    """A value as `parse_value` reads it."""
    deadline, curve = value.deadline, value.curve
    if deadline is not None:
        urgency = "" if deadline.urgency == DEFAULT_URGENCY else f":{deadline.urgency!r}"
        return f"deadline={deadline.seconds!r}{'s' if deadline.after_submission else ''}{urgency}"
    if value.goodput is not None:
        terms = value.goodput
        figures = (terms.initial_batch, terms.batch_per_node, terms.noise_scale)
        declared = ":".join(repr(figure) if figure else "" for figure in figures).rstrip(":")
        return f"goodput={declared}" if declared else "goodput"
    if curve.points:
        return "points=" + ",".join(f"{point.speedup!r}:{point.value!r}" for point in curve.points)
    return "linear" if curve.linear else f"diminishing={curve.exponent!r}"
