"""Reads JSON that a user has written or could have written: bounded before it is parsed, and checked by field.

Python's parser recurses with the nesting of what it reads, and makes an object of every entry. So bytes, nesting and
entries are counted first, in one pass over the text that makes no objects. Whatever is wrong is one error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A text that has no end counts up to the end of all: were it no match, each of its quotes would be looked at again.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]|,', re.DOTALL)
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")
_MAX_NUMBER_LENGTH = 40
_SHOWN = 60


class UntrustedJsonError(ValueError):
    """Text of a user is not what is expected. The message says what was, for people."""


@dataclass(frozen=True)
class JsonBounds:
    """What is read at most.

    Attributes:
        max_bytes: Bytes of the whole text.
        max_depth: Lists and objects within each other.
        max_entries: Entries of all lists and objects together.
    """

    max_bytes: int = 64 << 10
    max_depth: int = 8
    max_entries: int = 10_000


DEFAULT_BOUNDS = JsonBounds()


def parse_object(text: bytes, bounds: JsonBounds = DEFAULT_BOUNDS) -> dict[str, Any]:
    """An object; its fields are those of a user, see `text_of` and the others.

    Args:
        text: JSON in UTF-8.
        bounds: What is read at most.

    Raises:
        UntrustedJsonError: it is longer, deeper or larger than the bounds, no JSON, or no object.
    """
    _check_size(text, bounds)
    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_without_repetition,
            parse_constant=_refuse_constant,
            parse_int=_bounded_integer,
        )
    except UntrustedJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise UntrustedJsonError(f"expected JSON, got {text[:_SHOWN]!r} ({error})"[:500]) from None
    if not isinstance(value, dict):
        raise UntrustedJsonError(f"expected an object, got {text[:_SHOWN]!r}")
    return value


def _check_size(text: bytes, bounds: JsonBounds) -> None:
    if len(text) > bounds.max_bytes:
        raise UntrustedJsonError(f"expected at most {bounds.max_bytes} bytes, got {len(text)}")
    depth = entries = 0
    for match in _TOKENS.finditer(text):
        token = match.group()
        if token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
        if token == b"," or token in _OPENING:
            entries += 1
        if depth > bounds.max_depth:
            raise UntrustedJsonError(f"expected lists and objects within each other at most {bounds.max_depth} deep")
        if entries > bounds.max_entries:
            raise UntrustedJsonError(f"expected at most {bounds.max_entries} entries")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Readers differ in which of two fields with one name counts."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise UntrustedJsonError("expected each field once")
    return fields


def _refuse_constant(name: str) -> float:
    # JSON knows neither NaN nor infinity; Python writes them.
    raise UntrustedJsonError(f"expected a finite number, got {name}")


def _bounded_integer(digits: str) -> int:
    """A whole number; reading one takes the square of its length."""
    if len(digits) > _MAX_NUMBER_LENGTH:
        raise UntrustedJsonError(f"expected numbers of at most {_MAX_NUMBER_LENGTH} digits")
    return int(digits)


def text_of(fields: Mapping[str, Any], name: str, max_length: int, default: str | None = None) -> str:
    """A text, cut after `max_length` characters.

    Args:
        fields: An object of a user.
        name: The field.
        max_length: Longest text that is of use.
        default: Where there is no such field, or null in its place; None: there must be one.

    Raises:
        UntrustedJsonError: it is something else, or missing.
    """
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise _unexpected_error(name, "a text", value)
    return value[:max_length]


def texts_of(fields: Mapping[str, Any], name: str, max_texts: int, max_length: int) -> tuple[str, ...]:
    """The first texts of a list, each cut after `max_length` characters; none where there is no such field.

    Raises:
        UntrustedJsonError: it is something else.
    """
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise _unexpected_error(name, "a list of texts", value)
    return tuple(entry[:max_length] for entry in value[:max_texts])


def integer_of(fields: Mapping[str, Any], name: str, lowest: int, highest: int) -> int:
    """A whole number between two others.

    Raises:
        UntrustedJsonError: it is something else, or missing.
    """
    value = fields.get(name)
    if type(value) is not int or not lowest <= value <= highest:  # true and false are numbers of Python
        raise _unexpected_error(name, f"a whole number from {lowest} to {highest}", value)
    return value


def flag_of(fields: Mapping[str, Any], name: str) -> bool:
    """Whether a field is true; false where there is none.

    Raises:
        UntrustedJsonError: it is something else.
    """
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _unexpected_error(name, "true or false", value)
    return value


def _unexpected_error(name: str, expected: str, value: object) -> UntrustedJsonError:
    return UntrustedJsonError(f"{name}: expected {expected}, got {str(value)[:_SHOWN]!r}")
