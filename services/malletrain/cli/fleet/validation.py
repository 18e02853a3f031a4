"""Checks of an ensemble; errors name the field. Pure."""

from __future__ import annotations

import math

from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetProblem
from malletrain.fleet.rates import scaled_rates
from malletrain.runtime.errors import InvalidInputError

MAX_GPUS = 100_000
_MAX_RATES = 1_000_000
"""Members times GPUs: a plan looks at each rate."""
_MAX_EPOCHS = 1_000_000
_MIN_RATE, _LARGEST = 1e-9, 1e12
"""Slowest rate in samples/s, and largest rate, tolerance or time: beyond, sums would not be exact."""


def validate(problem: FleetProblem) -> None:
    """Check a problem.

    Raises:
        InvalidInputError: the problem is not valid; the error names the field, e.g. `models[1].rates[2]`.
    """
    if not 1 <= problem.gpus <= MAX_GPUS:
        raise InvalidInputError("gpus", f"1 to {MAX_GPUS} GPUs", problem.gpus)
    _whole("gpus_per_node", problem.gpus_per_node, MAX_GPUS)
    _number("samples_per_epoch", problem.samples_per_epoch, above=0.0)
    _number("rate_tolerance", problem.tolerance.samples_per_second)
    _number("rate_tolerance_share", problem.tolerance.share)
    if not 0 <= problem.active_share <= 1:
        raise InvalidInputError("active_share", "a number from 0 to 1", problem.active_share)
    _number("checkpoint_seconds", problem.checkpoint_seconds)
    if problem.preprocess_rate != 0:
        _rate("preprocess_rate", problem.preprocess_rate, "0, or samples/s")
    if not problem.models:
        raise InvalidInputError("models", "at least one member", "none")
    if len(problem.models) * problem.gpus > _MAX_RATES:
        most = _MAX_RATES // len(problem.models)
        raise InvalidInputError("gpus", f"at most {most} GPUs with {len(problem.models)} members", problem.gpus)
    seen: dict[str, int] = {}
    for index, model in enumerate(problem.models):
        _check_model(f"models[{index}]", model)
        if model.id in seen:
            raise InvalidInputError(
                f"models[{index}].id", f"each member once (models[{seen[model.id]}] has it too)", model.id
            )
        seen[model.id] = index
        _check_tail(f"models[{index}].rates", model, problem)


def _check_model(field: str, model: EnsembleModel) -> None:
    if not model.id.strip() or not model.id.isprintable():
        raise InvalidInputError(f"{field}.id", "a name of printable characters", model.id)
    _whole(f"{field}.epochs", model.epochs, _MAX_EPOCHS)
    if not model.rates:
        raise InvalidInputError(f"{field}.rates", "samples/s at 1, 2, 3… GPUs, at least at one", "none")
    for place, rate in enumerate(model.rates):
        _rate(f"{field}.rates[{place}]", rate, "samples/s")


def _check_tail(field: str, model: EnsembleModel, problem: FleetProblem) -> None:
    """Where members may get GPUs beyond their peak, Eq. 5 must not bring them to a standstill."""
    if problem.beyond_peak is BeyondPeak.AVOID:
        return
    slowest = min(scaled_rates(model.rates, problem.gpus, problem.gpus_per_node))
    if slowest < _MIN_RATE:
        expected = f"rates with which Eq. 5 stays above {_MIN_RATE:g} samples/s up to {problem.gpus} GPUs"
        raise InvalidInputError(field, expected, slowest)


def _whole(field: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidInputError(field, f"a whole number from 1 to {most}", value)


def _number(field: str, value: float, above: float | None = None) -> None:
    if not (math.isfinite(value) and 0 <= value <= _LARGEST) or value == above:
        expected = f"at most {_LARGEST:g}"
        raise InvalidInputError(
            field, f"a number above 0, {expected}" if above == 0 else f"0 or more, {expected}", value
        )


def _rate(field: str, value: float, what: str) -> None:
    if not _MIN_RATE <= value <= _LARGEST:
        raise InvalidInputError(field, f"{what}, {_MIN_RATE:g} to {_LARGEST:g}", value)
