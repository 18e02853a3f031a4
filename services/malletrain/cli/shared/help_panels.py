"""Options of a verb in groups, as `--help` shows them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from typer.models import OptionInfo

_Verb = TypeVar("_Verb", bound=Callable[..., None])


def help_panels(panels: Mapping[str, Sequence[str]]) -> Callable[[_Verb], _Verb]:
    """Put the options of a verb into groups; those that are in none stay under "Options".

    Args:
        panels: Names of the verb's parameters by the title of their group.

    Raises:
        KeyError: the verb has no such parameter.
    """

    def grouped(verb: _Verb) -> _Verb:
        hints = get_type_hints(verb, include_extras=True)
        for title, names in panels.items():
            for name in names:
                kind, option, *others = get_args(hints[name])
                if not isinstance(option, OptionInfo):
                    raise KeyError(name)
                own = copy.copy(option)  # verbs share some
                own.rich_help_panel = title
                _make_narrow(own, kind)
                hints[name] = Annotated[kind, own, *others]
        verb.__annotations__ = hints
        return verb

    return grouped


def _make_narrow(option: OptionInfo, kind: Any) -> None:
    """Leave room for options' names, which are cut otherwise where a terminal has 80 columns."""
    kinds = [part for part in (kind, *get_args(kind)) if isinstance(part, type)]
    choices = [part for part in kinds if issubclass(part, Enum)]
    if option.metavar is None and choices:
        option.metavar = "WHICH"
        values = [str(entry.value) for entry in choices[0]]
        missing = [value for value in values if value not in (option.help or "")]
        option.help = f"{option.help} One of {', '.join(values)}." if missing else option.help
    elif option.metavar is None and not any(issubclass(part, bool) for part in kinds):
        numbers = [part for part in kinds if issubclass(part, int | float)]
        option.metavar = "N" if numbers else "PATH" if any(issubclass(part, Path) for part in kinds) else "TEXT"
