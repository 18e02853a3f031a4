"""JSON of this package's dataclasses: jobs in the store, state and stimuli in recordings.

`to_json` writes a dataclass as an object of its fields. `from_json` reads it back by the annotations of the fields, so
that a new field needs no code here. A new field needs a default, since rows stored before do not have it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.jobs import Job, JobSpec, job_id
from malletrain.runtime.errors import MalleTrainError

_T = TypeVar("_T")
_Decoder = Callable[[Any], Any]
_PLAIN = frozenset({int, float, str, bool})


class UnknownJobError(MalleTrainError):
    """A stored job can't be read by this version; the message is for people."""


def encode(job: Job) -> str:
    """A job as JSON."""
    return json.dumps(to_json(job), separators=(",", ":"))


def decode(body: str) -> Job:
    """A job from JSON that this version, an earlier or a later one wrote. Fields of a later one are left out.

    Raises:
        UnknownJobError: a later version has given a field a value that this one does not know.
    """
    fields: dict[str, Any] = json.loads(body)
    if "strikes" in fields:  # the name in version 0.1.0
        fields["counted_failures"] = fields.pop("strikes")
    fields["spec"] = _known(JobSpec, fields["spec"])
    if fleet := fields["spec"].get("fleet"):
        fields["spec"]["fleet"] = _known(FleetSpec, fleet)
    try:
        return from_json(Job, _known(Job, fields))
    except ValueError as error:
        raise UnknownJobError(
            f"job {job_id(fields['number'])} is stored with a value that this version of MalleTrain does not know "
            f"({error}): use the version that wrote it or a later one, or restore a backup that was made before "
            "(malletrain restore)"
        ) from error


def _known(kind: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in names}


def to_json(value: Any) -> Any:
    """Dataclasses, mappings, tuples, sets and enums as what JSON has."""
    if value is None or type(value) in _PLAIN:
        return value
    if (names := _field_names(typing.cast(Hashable, type(value)))) is not None:
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: to_json(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, frozenset):
        return sorted(to_json(entry) for entry in value)
    return value.value if isinstance(value, StrEnum) else value


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """Names of a dataclass's fields; None for any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def from_json(kind: type[_T], value: Any) -> _T:
    """A dataclass from what `to_json` made of it.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    decoded: _T = _decoder(typing.cast(Hashable, kind))(value)
    return decoded


@cache
def _decoder(kind: Any) -> _Decoder:
    if kind in (int, float, str, bool, types.NoneType):
        return _unchanged
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is frozenset:
        entry = _decoder(arguments[0])
        return lambda values: frozenset(map(entry, values))
    if origin is Mapping:
        entry = _decoder(arguments[1])
        return lambda values: {name: entry(found) for name, found in values.items()}
    if origin is tuple and arguments[-1] is ...:
        entry = _decoder(arguments[0])
        return lambda values: tuple(map(entry, values))
    if origin is tuple:
        entries = [_decoder(argument) for argument in arguments]
        return lambda values: tuple(entry(found) for entry, found in zip(entries, values, strict=True))
    if origin is types.UnionType and len(arguments) == 2 and arguments[1] is types.NoneType:
        present = _decoder(arguments[0])
        return lambda found: None if found is None else present(found)
    raise TypeError(f"no JSON is defined for {kind}")


def _dataclass_decoder(kind: Any) -> _Decoder:
    hints = typing.get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(kind)}
    return lambda values: kind(**{name: decoders[name](found) for name, found in values.items()})


def _unchanged(value: Any) -> Any:
    return value
