"""JSON of dataclasses, by the annotations of their fields: what services store and record. Pure.

A new field needs a default and no code here: documents that were written before do not have it. Those of a NamedTuple
come last.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from functools import cache
from typing import Any, TypeVar

from malletrain.runtime.errors import InvalidInputError

DERIVED: Mapping[str, bool] = {"derived": True}
"""Metadata of a field that is worked out from others: it is left out of documents and copies, and needs a default."""

_T = TypeVar("_T")
_Decode = Callable[[Any], Any]
_PLAIN = frozenset({int, float, str, bool})
_EXPECTED = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}


def to_document(value: Any) -> Any:
    """A value as what JSON has: dataclasses and mappings as objects, all that is in some order as lists.

    Raises:
        TypeError: documents have no such values.
    """
    kind = type(value)
    if value is None or kind in _PLAIN:
        return value
    if (fields := _fields(typing.cast(Hashable, kind))) is not None:
        return {name: to_document(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_document(entry) for key, entry in value.items()}
        return [[to_document(key), to_document(entry)] for key, entry in value.items()]
    if isinstance(value, tuple | list):
        return [to_document(entry) for entry in value]
    if isinstance(value, frozenset | set):
        return sorted(to_document(entry) for entry in value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int | float | str):
        return value
    raise TypeError(f"documents have no {kind.__name__}: {value!r}")


def from_document(kind: type[_T], document: Any, *, ignore_unknown: bool = False) -> _T:
    """A value from what `to_document` has made of it.

    Args:
        kind: Its type.
        ignore_unknown: Leave out fields that this version does not know, in place of an error.

    Raises:
        InvalidInputError: it is something else; the error names the field.
    """
    decoded: _T = _decoder(typing.cast(Hashable, kind), ignore_unknown)(document)
    return decoded


def copy_state(state: _T) -> _T:
    """A copy of a machine's state that shares what never changes: frozen dataclasses are their own copy.

    Other dataclasses are copied field by field. Of dictionaries, lists and sets the entries must not change.
    """
    kind: Any = type(state)
    if kind in _PLAIN:
        return state
    if isinstance(state, dict | list | set):
        return typing.cast(_T, state.copy())
    if (fields := _changing_fields(kind)) is None:
        return state
    twin = object.__new__(kind)
    for name, make in fields:
        value = getattr(state, name) if make is None else make()
        # Most fields are plain: a call for each would take most of the time.
        object.__setattr__(twin, name, value if make or type(value) in _PLAIN else copy_state(value))
    return typing.cast(_T, twin)


def in_field(name: str, error: InvalidInputError) -> InvalidInputError:
    """An error of a part of a document, as one of the whole.

    Args:
        name: The part's name, or "[3]" in a list.
    """
    return error.at(name + ("." if error.field and not error.field.startswith("[") else "") + error.field)


@cache
def _changing_fields(kind: Any) -> tuple[tuple[str, Callable[[], Any] | None], ...] | None:
    """Fields of a dataclass that is not frozen, each with what makes it anew if it is derived; None for other types."""
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or parameters.frozen:
        return None
    return tuple((field.name, _maker(field) if _is_derived(field) else None) for field in dataclasses.fields(kind))


def _maker(field: dataclasses.Field[Any]) -> Callable[[], Any]:
    return (lambda: field.default) if field.default_factory is dataclasses.MISSING else field.default_factory


def _is_derived(field: dataclasses.Field[Any]) -> bool:
    return bool(field.metadata.get("derived"))


@cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """Names of the fields of a dataclass in documents; None for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if not _is_derived(field))


@cache
def _decoder(kind: Any, ignore_unknown: bool) -> _Decode:
    def inner(argument: Any) -> _Decode:
        return _decoder(argument, ignore_unknown)

    if kind in _EXPECTED:
        return _plain_decoder(kind)
    if kind is Any:
        return lambda value: value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_decoder(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind, ignore_unknown)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        entries = [inner(hints[name]) for name in kind._fields]
        return _tuple_decoder(
            entries, lambda decoded: kind(*decoded), optional=len(getattr(kind, "_field_defaults", ()))
        )
    if origin in (frozenset, set, list) or (origin is tuple and arguments[-1] is ...):
        return _list_decoder(inner(arguments[0]), origin)
    if origin is Sequence:
        return _list_decoder(inner(arguments[0]), tuple)
    if origin is tuple:
        return _tuple_decoder([inner(argument) for argument in arguments], tuple)
    if origin in (Mapping, dict):
        return _mapping_decoder(inner(arguments[0]), inner(arguments[1]))
    if origin is types.UnionType and len(arguments) == 2 and arguments[1] is types.NoneType:
        present = inner(arguments[0])
        return lambda value: None if value is None else present(value)
    raise TypeError(f"documents have no {kind}")


def _plain_decoder(kind: Any) -> _Decode:
    accepted = (int, float) if kind is float else kind

    def decode(value: Any) -> Any:
        if not isinstance(value, accepted) or (value.__class__ is bool and kind is not bool):
            raise InvalidInputError("", _EXPECTED[kind], value)
        return value

    return decode


def _enum_decoder(kind: type[Enum]) -> _Decode:
    find = kind if issubclass(kind, StrEnum) else kind.__getitem__

    def decode(value: Any) -> Any:
        try:
            return find(value)
        except (ValueError, KeyError, TypeError):
            raise InvalidInputError("", f"one of {', '.join(map(to_document, kind))}", value) from None

    return decode


def _list_decoder(entry: _Decode, build: Callable[[Iterable[Any]], Any]) -> _Decode:
    def decode(values: Any) -> Any:
        return build(_entries(itertools.repeat(entry), _check_list(values)))

    return decode


def _tuple_decoder(entries: list[_Decode], build: Callable[[Iterable[Any]], Any], optional: int = 0) -> _Decode:
    least = len(entries) - optional
    expected = f"a list of {f'{least} to ' if optional else ''}{len(entries)}"

    def decode(values: Any) -> Any:
        if not least <= len(_check_list(values)) <= len(entries):
            raise InvalidInputError("", expected, values)
        return build(_entries(entries, values))

    return decode


def _mapping_decoder(key: _Decode, entry: _Decode) -> _Decode:
    def decode(values: Any) -> Any:
        pairs = values.items() if isinstance(values, dict) else map(_pair, _check_list(values))
        decoded = {}
        for name, value in pairs:
            try:
                decoded[key(name)] = entry(value)
            except InvalidInputError as error:
                raise in_field(f"[{name}]", error) from None
        return decoded

    return decode


def _dataclass_decoder(kind: Any, ignore_unknown: bool) -> _Decode:
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    known = {field.name: field for field in fields if not _is_derived(field)}
    decoders = {name: _decoder(hints[name], ignore_unknown) for name in known}
    required = {
        name
        for name, field in known.items()
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    set_later = {name for name, field in known.items() if not field.init}

    def decode(values: Any) -> Any:
        if not isinstance(values, dict):
            raise InvalidInputError("", "an object", values)
        decoded = {}
        for name, value in values.items():
            if name not in decoders:
                if ignore_unknown:
                    continue
                raise InvalidInputError(name, f"nothing: {kind.__name__} has no such field")
            try:
                decoded[name] = decoders[name](value)
            except InvalidInputError as error:
                raise in_field(name, error) from None
        if missing := required - decoded.keys():
            raise InvalidInputError(min(missing), "a value, and there is none")
        later = {name: decoded.pop(name) for name in set_later & decoded.keys()}
        built = kind(**decoded)
        for name, value in later.items():
            object.__setattr__(built, name, value)
        return built

    return decode


def _entries(decoders: Iterable[_Decode], values: list[Any]) -> Iterable[Any]:
    for index, (decode, value) in enumerate(zip(decoders, values, strict=False)):
        try:
            yield decode(value)
        except InvalidInputError as error:
            raise in_field(f"[{index}]", error) from None


def _check_list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise InvalidInputError("", "a list", values)
    return values


def _pair(value: Any) -> tuple[Any, Any]:
    if len(_check_list(value)) != 2:
        raise InvalidInputError("", "a list of 2", value)
    key, entry = value
    return key, entry
