"""Verbs and groups of verbs that start sooner than typer's own."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Verb(TyperCommand):
    """A verb whose options are validated only where they were given.

    Typer makes a validator for each option before it looks at its value, and imports Pydantic for the first one. That
    was a third of the time that `malletrain jobs` took, and most defaults need none: type checks know their types.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options and arguments, `--help` among them."""
        return _sparing_defaults(super().get_params(ctx))


class VerbGroup(TyperGroup):
    """The same for a group of verbs, and for the command itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options and arguments, `--help` among them."""
        return _sparing_defaults(super().get_params(ctx))


def _sparing_defaults(options: list[Any]) -> list[Any]:
    for option in options:
        if not option.required and "process_value" not in vars(option):
            option.process_value = _sparing(option, option.process_value)
    return options


def _sparing(option: Any, process: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    several = option.multiple or option.nargs == -1

    def process_value(context: Any, value: Any) -> Any:
        if value is not None and not (value is option.default and _is_of_its_type(value)):
            return process(context, value)
        found = () if value is None and several else value
        return found if option.callback is None else option.callback(context, option, found)

    return process_value


def _is_of_its_type(default: object) -> bool:
    """Whether typer would make nothing else of a default. A text may stand for a path, or an enumeration."""
    return default == "" or isinstance(default, bool | int | float | Enum)
