"""Where a setting stands, and which one was probably meant. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(?:\.|$)""")


def line_of(text: str, place: Sequence[int | str]) -> int | None:
    """The line of a TOML file where a setting stands, or else the table that it would be in; None: neither is there.

    Args:
        text: The file.
        place: Path of the setting, e.g. ("scavenger", "speed"); what is in a list has the line of the list.
    """
    names = [str(part) for part in place if isinstance(part, str)]
    table: list[str] = []
    nearest: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _parts(header[1])
            full = table
        elif key := _KEY.match(line):
            full = table + _parts(key[1])
        else:
            continue
        if full and names[: len(full)] == full:
            nearest.setdefault(len(full), number)
    return nearest[max(nearest)] if nearest else None


def _parts(dotted: str) -> list[str]:
    return [quoted or single or bare for quoted, single, bare in _PART.findall(dotted)]


def variable_of(environment: Mapping[str, str], prefix: str, place: Sequence[int | str]) -> str | None:
    """The variable of the environment that sets something, as it is spelled there; None: none does."""
    names = [str(part).upper() for part in place if isinstance(part, str)]
    known = {name.upper(): name for name in environment}
    for length in range(len(names), 0, -1):
        if variable := known.get(prefix + "__".join(names[:length])):
            return variable
    return None


def place_in_words(
    environment: Mapping[str, str], prefix: str, place: Sequence[int | str], file: object, text: str
) -> str:
    """The variable, or the file and line, that a setting comes from; empty: neither is known.

    Args:
        environment: Variables of the process.
        prefix: What those begin with that are settings.
        place: Path of the setting.
        file: The TOML file, as it is called.
        text: What it says.
    """
    if variable := variable_of(environment, prefix, place):
        return variable
    line = line_of(text, place)
    return f"{file}:{line}" if line else ""


def nearest_key(model: type[Any], place: Sequence[int | str]) -> str | None:
    """The key that somebody may have meant by an unknown one; None: none is like it.

    Args:
        model: The settings, a model of pydantic, which those do without who only call services.
        place: Path of the unknown key.
    """
    *sections, wrong = (str(part) for part in place)
    known: Any = model
    for name in sections:
        field = known.model_fields.get(name) if known is not None else None
        kind = field.annotation if field is not None else None
        known = kind if isinstance(kind, type) and hasattr(kind, "model_fields") else None
    like = difflib.get_close_matches(wrong, known.model_fields, 1) if known is not None else []
    return like[0] if like else None
