"""Changes single values in the TOML file of the settings, and leaves everything else in it as it is."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from malletrain.common.environment import PREFIX
from malletrain.common.files import write_atomically
from malletrain.runtime.errors import InvalidInputError

SettingValue = str | float | int
SettingValues = Mapping[tuple[str, str], SettingValue]
"""Values by section and name."""


def as_toml(values: SettingValues) -> str:
    """Sections with these values, as lines of TOML."""
    lines: list[str] = []
    for section in dict.fromkeys(section for section, _ in values):
        lines.append(f"[{section}]")
        lines += [_line(name, value) for (other, name), value in values.items() if other == section]
    return "\n".join(lines)


def changed_text(text: str, values: SettingValues) -> str:
    """The text of a TOML file with these values.

    Raises:
        ValueError: it can't be changed without understanding more of it; nothing is lost.
    """
    expected = tomllib.loads(text)
    lines = text.splitlines()
    for (section, name), value in values.items():
        expected.setdefault(section, {})[name] = value
        lines = _with_value(lines, section, _line(name, value), name)
    changed = "\n".join(lines) + "\n"
    if tomllib.loads(changed) != expected:
        raise ValueError("the file is written in a way that only a person can change")
    return changed


def change_settings(config: Path, values: SettingValues) -> None:
    """Change values in a file of settings, completely or not at all.

    Raises:
        InvalidInputError: the file can't be read, changed or written, or a variable of the environment has the value.
    """
    for section, name in values:
        variable = f"{PREFIX}{section}__{name}".upper()
        if any(known.upper() == variable for known in os.environ):
            raise InvalidInputError("--apply", f"{section}.{name} in the file: the variable {variable} overrides it")
    try:
        text = config.read_text(encoding="utf-8")
        changed = changed_text(text, values)
        write_atomically(config, changed, mode=config.stat().st_mode & 0o777)
    except (OSError, ValueError) as error:
        raise InvalidInputError("--apply", f"a TOML file that can be changed ({error})", str(config)) from error


def _with_value(lines: list[str], section: str, line: str, name: str) -> list[str]:
    header = re.compile(rf"\s*\[\s*{re.escape(section)}\s*\]\s*(#.*)?$")
    begin = next((index for index, found in enumerate(lines) if header.match(found)), None)
    if begin is None:
        return [*lines, "", f"[{section}]", line]
    end = next((index for index in range(begin + 1, len(lines)) if lines[index].lstrip().startswith("[")), len(lines))
    present = re.compile(rf"\s*{re.escape(name)}\s*=")
    for index in range(begin + 1, end):
        if present.match(lines[index]):
            return [*lines[:index], line, *lines[index + 1 :]]
    return [*lines[: begin + 1], line, *lines[begin + 1 :]]


def _line(name: str, value: SettingValue) -> str:
    return f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
