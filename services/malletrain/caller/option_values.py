"""Values of a job's options, as Python and job files have them: checked by their names; others get a suggestion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from malletrain.caller.job_request import JobRequest
from malletrain.caller.other_names import own_options, why_absent
from malletrain.runtime.errors import InvalidInputError

_MAX_INTEGER = {"target_samples": 2**63 - 1}
_INT32 = 2**31 - 1


def _whole(name: str, value: object) -> int:
    most = _MAX_INTEGER.get(name, _INT32)
    if isinstance(value, bool) or not isinstance(value, int) or not -most <= value <= most:
        raise InvalidInputError(name, "a whole number", value)
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInputError(name, "a finite number", value)
    return float(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(name, "a text", value)
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInputError(name, "True or False", value)
    return value


def _wholes(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInputError(name, "a list of whole numbers", value)
    return tuple(_whole(f"{name}[{place}]", number) for place, number in enumerate(value))


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInputError(name, "a list of texts", value)
    return tuple(_text(f"{name}[{place}]", entry) for place, entry in enumerate(value))


def _variables(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(name, "a dictionary of texts", value)
    # Values may be secrets, and are not quoted.
    for key, entry in value.items():
        _text(name, key)
        if not isinstance(entry, str):
            raise InvalidInputError(f"{name}[{key!r}]", f"a text, and not {type(entry).__name__}")
    return dict(value)


def _curve(name: str, value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(name, "a dictionary of samples per second by number of nodes", value)
    return tuple((_whole(name, nodes), _number(f"{name}[{nodes}]", rate)) for nodes, rate in value.items())


def _folder(name: str, value: object) -> Path:
    if not isinstance(value, str | PathLike):
        raise InvalidInputError(name, "a path", value)
    return Path(fspath(value))


_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "int": _whole,
    "float": _number,
    "str": _text,
    "bool": _flag,
    "Sequence[int]": _wholes,
    "Sequence[str]": _texts,
    "Sequence[tuple[int, float]]": _curve,
    "Mapping[str, str]": _variables,
    "Path": _folder,
}
"""By the annotation of an option in `JobRequest`, without `| None`."""
_TYPES = {entry.name: str(entry.type) for entry in fields(JobRequest)}
NAMES = tuple(name for name in _TYPES if name not in ("command", "array"))
"""Names of all options."""
_IN_PYTHON = {"min": "min_nodes", "max": "max_nodes"}


def checked_command(command: object) -> tuple[str, ...]:
    """A command as `JobRequest` takes it.

    Raises:
        InvalidInputError: it is no list of texts, or an empty one.
    """
    if isinstance(command, str):
        raise InvalidInputError("command", 'a list of texts such as ["python", "train.py"]', command)
    words = _texts("command", command)
    if not words:
        raise InvalidInputError("command", "a program and its arguments", command)
    return words


def checked_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The options as `JobRequest` takes them.

    Raises:
        InvalidInputError: there is no such option, and which is the nearest; or a value is of another type.
    """
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name not in NAMES:
            raise unknown_option(name, NAMES)
        needed = _TYPES[name].removesuffix(" | None")
        if value is not None or needed == _TYPES[name]:
            checked[name] = _CHECKS[needed](name, value)
    return checked


def unknown_option(name: str, known: Sequence[str]) -> InvalidInputError:
    """The error about an option that there is not."""
    if absent := why_absent(name):
        return InvalidInputError(name, f"an option of jobs; {absent}")
    ours = own_options(name) or ((name,) if name in _IN_PYTHON else ())
    meant = [_IN_PYTHON.get(option, option.replace("-", "_")) for option in ours]
    near = " and ".join(meant) or nearest(name, known)
    expected = f"an option of jobs; do you mean {near}?" if near else f"one of {', '.join(known)}"
    return InvalidInputError(name, expected)


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that is meant, probably; empty: none is like it."""
    return next(iter(get_close_matches(name, known, 1)), "")
