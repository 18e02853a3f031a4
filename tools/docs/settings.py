"""Reference page of the settings, made from the settings classes."""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from malletrain.cli.shared.settings import AllSettings

HEAD = """# Settings

Settings come from `malletrain.toml` in the working directory, or from the file that `--config` names. The
environment wins: `MALLETRAIN_SCAVENGER__SLURM__POOL` is the setting `pool` of the section `[scavenger.slurm]`.
`malletrain up` refuses a setting of a section that it does not know, and names it.
"""


def reference_page() -> str:
    """Markdown of the page."""
    return "\n".join([HEAD, *_section(AllSettings, "")])


def setting_names() -> set[str]:
    """Dotted names of all settings and of their sections, e.g. `scavenger.slurm.pool`."""
    return set(_names(AllSettings, ""))


def tables_by_name(model: type[BaseModel] = AllSettings, prefix: str = "") -> set[str]:
    """Dotted names of settings that are tables whose keys the operator chooses, e.g. `job_manager.projects`."""
    found = set()
    for name, field in model.model_fields.items():
        if typing.get_origin(field.annotation) is dict:
            found.add(f"{prefix}{name}")
        if (section := _section_model(field)) is not None:
            found |= tables_by_name(section, f"{prefix}{name}.")
    return found


def _names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        if (section := _section_model(field) or _entry_model(field)) is not None:
            yield from _names(section, f"{prefix}{name}.")


def _section(model: type[BaseModel], prefix: str) -> Iterator[str]:
    plain = {name: field for name, field in model.model_fields.items() if _section_model(field) is None}
    yield f"## [{prefix.rstrip('.')}]" if prefix else "## For all services"
    yield ""
    if plain:
        yield from _table(plain)
        yield ""
    for name, field in model.model_fields.items():
        if (section := _section_model(field)) is not None:
            yield from _section(section, f"{prefix}{name}.")
        elif (entry := _entry_model(field)) is not None:
            yield from (f"## [[{prefix}{name}]]", "", *_table(entry.model_fields), "")
        elif (entry := _named_model(field)) is not None:
            yield from (f"## [{prefix}{name}.NAME]", "", *_table(entry.model_fields), "")


def _table(fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    yield from ("| setting | type | default | meaning |", "| --- | --- | --- | --- |")
    for name, field in fields.items():
        meaning = (field.description or "").replace("|", r"\|")
        default = "must be set" if field.is_required() else _default(field)
        yield f"| `{name}` | {_type_name(field.annotation)} | {default} | {meaning} |"


def _section_model(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a section; None for a plain setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _entry_model(field: FieldInfo) -> type[BaseModel] | None:
    """The model of the entries of a list of tables; None for another setting."""
    arguments = typing.get_args(field.annotation)
    kind = arguments[0] if typing.get_origin(field.annotation) is tuple else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _named_model(field: FieldInfo) -> type[BaseModel] | None:
    """The model of the tables whose names the operator chooses; None for another setting."""
    arguments = typing.get_args(field.annotation)
    kind = arguments[1] if typing.get_origin(field.annotation) is dict else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _type_name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(part) for part in arguments if part is not type(None))
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in (tuple, list, frozenset, set):
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"table of {_type_name(arguments[1])}, by name"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "tables"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{word.value}`" for word in kind)
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path", SecretStr: "text"}
    return names[kind]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", SecretStr("")):
        return "none"
    if value == sys.executable:
        return "the Python of the services"
    if isinstance(value, Path):
        return f"`{str(value).replace(str(Path.home()), '~')}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    return f"`{json.dumps(value)}`" if isinstance(value, bool | tuple | dict) else f"`{value}`"
